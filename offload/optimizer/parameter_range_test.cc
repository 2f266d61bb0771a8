#include "offload/optimizer/parameter_range.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/small_float.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {

namespace {

TEST(TypedSpan, DeducesTypeOfSpan) {
  std::vector<BF16> values(5);
  const TypedSpan span = std::span(values);
  EXPECT_EQ(span.dtype(), DType::kBF16);
  EXPECT_EQ(span.size(), 5);
  EXPECT_EQ(span.size_in_bytes(), 10);
  EXPECT_EQ(span.At(3), reinterpret_cast<std::byte*>(&values[3]));
  const ConstTypedSpan constant = span;
  EXPECT_EQ(constant.data(), span.data());
  const ConstTypedSpan direct = std::span<const BF16>(values);
  EXPECT_EQ(direct.dtype(), DType::kBF16);
  EXPECT_TRUE(TypedSpan().empty());
  EXPECT_EQ(TypedSpan().At(0), nullptr);
}

TEST(TypedSpan, AcceptsOnlyContiguousViews) {
  std::vector<float> values(12);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Of(std::span(values), {{3, 4}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TypedSpan span, TypedSpan::Of(view));
  EXPECT_EQ(span.size(), 12);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView columns, view.Narrow(1, 1, 2));
  EXPECT_THAT(TypedSpan::Of(columns),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::HasSubstr("contiguous tensors in host")));
}

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MomentFormat, IsFoundByItsName) {
  EXPECT_THAT(ParseMomentFormat("f32"), IsOkAndHolds(MomentFormat::F32()));
  EXPECT_THAT(ParseMomentFormat("bf16"), IsOkAndHolds(MomentFormat::BF16()));
  EXPECT_THAT(ParseMomentFormat("int8"),
              IsOkAndHolds(MomentFormat::Blockwise8()));
  for (const char* name : {"", "fp32", "f64", "int8\n"}) {
    EXPECT_THAT(
        ParseMomentFormat(name),
        StatusIs(kInvalid, HasSubstr("must be one of f32, bf16, int8")));
  }
}

TEST(MomentBytes, AreExact) {
  EXPECT_THAT(MomentBytes(MomentFormat::F64(), 7), IsOkAndHolds(56));
  EXPECT_THAT(MomentBytes(MomentFormat::F32(), 7), IsOkAndHolds(28));
  EXPECT_THAT(MomentBytes(MomentFormat::BF16(), 7), IsOkAndHolds(14));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 0), IsOkAndHolds(0));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 1), IsOkAndHolds(5));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 2048),
              IsOkAndHolds(2052));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 2049),
              IsOkAndHolds(2057));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(256), int64_t{1} << 40),
              IsOkAndHolds((int64_t{1} << 40) + (int64_t{1} << 34)));
}

TEST(MomentBytes, RejectsInvalidCountsAndFormats) {
  EXPECT_THAT(MomentBytes(MomentFormat::F32(), -1),
              StatusIs(kInvalid, HasSubstr("moments of -1 elements")));
  EXPECT_THAT(
      MomentBytes(MomentFormat::F32(), std::numeric_limits<int64_t>::max()),
      StatusIs(kInvalid));
  for (int64_t block : {-2048, 0, 32, 100, 4096}) {
    EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(block), 1),
                StatusIs(kInvalid, HasSubstr("power of two from 64 to 2048")))
        << block;
  }
  EXPECT_THAT(MomentBytes({MomentType::kF32, 64}, 1), StatusIs(kInvalid));
  EXPECT_THAT(MomentBytes({static_cast<MomentType>(9), 0}, 1),
              StatusIs(kInvalid, HasSubstr("moment type 9")));
}

TEST(MomentFormat, Prints) {
  EXPECT_EQ(MomentFormat::F64().ToString(), "f64");
  EXPECT_EQ(MomentFormat::F32().ToString(), "f32");
  EXPECT_EQ(MomentFormat::BF16().ToString(), "bf16");
  EXPECT_EQ(MomentFormat::Blockwise8(256).ToString(), "8-bit/256");
}

TEST(MomentSpan, RequiresStorageOfExactSize) {
  alignas(8) std::byte storage[64 + 64] = {};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MomentSpan codes,
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage, 108}));
  EXPECT_EQ(codes.largest.size(), 2u);
  EXPECT_EQ(codes.values, storage + 8);
  EXPECT_EQ(codes.size, 100);
  EXPECT_THAT(
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage, 107}),
      StatusIs(kInvalid, HasSubstr("take 108 bytes, and the storage has 107")));
  EXPECT_THAT(
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage + 2, 108}),
      StatusIs(kInvalid, HasSubstr("not a multiple of 4")));
  EXPECT_THAT(MomentSpan::Over(MomentFormat::BF16(), 3, {storage + 2, 6}),
              IsOk());
  EXPECT_THAT(MomentSpan::Over(MomentFormat::BF16(), 3, {storage + 1, 6}),
              StatusIs(kInvalid, HasSubstr("not a multiple of 2")));
  EXPECT_THAT(MomentSpan::Over(MomentFormat::F32(), 0, {}), IsOk());
}

TEST(MomentSpan, HasPiecesAtBlocks) {
  std::vector<float> values(10);
  const MomentSpan f32 = MomentSpan::Of(std::span(values));
  TESSERA_ASSERT_OK_AND_ASSIGN(MomentSpan piece, f32.Piece(3, 7));
  EXPECT_EQ(piece.values, reinterpret_cast<std::byte*>(&values[3]));
  EXPECT_EQ(piece.size, 7);
  EXPECT_THAT(f32.Piece(4, 7), StatusIs(kInvalid, HasSubstr("4 on, of 10")));
  EXPECT_THAT(f32.Piece(-1, 1), StatusIs(kInvalid));
  EXPECT_THAT(f32.Piece(11, 0), StatusIs(kInvalid));
  EXPECT_THAT(f32.Piece(1, std::numeric_limits<int64_t>::max()),
              StatusIs(kInvalid));

  std::vector<std::byte> storage(200 + 4 * 4);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MomentSpan codes,
      MomentSpan::Over(MomentFormat::Blockwise8(64), 200, storage));
  TESSERA_ASSERT_OK_AND_ASSIGN(piece, codes.Piece(128, 72));
  EXPECT_EQ(piece.values, codes.values + 128);
  EXPECT_EQ(piece.largest.data(), codes.largest.data() + 2);
  EXPECT_EQ(piece.largest.size(), 2u);
  EXPECT_THAT(
      codes.Piece(100, 10),
      StatusIs(kInvalid, HasSubstr("nearest boundaries are 64 and 128")));
}

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckRangesTest : public ::testing::Test {
 protected:
  absl::Status Check(const std::function<void(ParameterRange&)>& spoil,
                     int moments = 2) {
    ParameterRange range = Valid();
    spoil(range);
    return CheckRanges({&range, 1}, moments);
  }

  ParameterRange Valid() {
    return {.name = "w",
            .parameter = std::span(p_),
            .gradient = std::span<const float>(g_),
            .first = MomentSpan::Of(std::span(m_)),
            .second = MomentSpan::Of(std::span(v_)),
            .copy = std::span(c_)};
  }

  std::vector<float> p_ = std::vector<float>(100), g_ = p_, m_ = p_, v_ = p_;
  std::vector<double> wide_ = std::vector<double>(100);
  std::vector<BF16> c_ = std::vector<BF16>(100);
  std::vector<F16> half_ = std::vector<F16>(100);
  std::vector<std::byte> codes_ = std::vector<std::byte>(100 + 8);
};

TEST_F(CheckRangesTest, AcceptsSupportedRanges) {
  EXPECT_THAT(Check([](ParameterRange&) {}), IsOk());
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span(half_);
                r.copy = {};
              }),
              IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r = {}; }), IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r.whole = 100; }), IsOk());
  EXPECT_THAT(CheckRanges({}, 2), IsOk());
  // Unused spans are not checked.
  EXPECT_THAT(Check([](ParameterRange& r) { r.second = {}; }, 1), IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r.first = r.second = {}; }, 0),
              IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.gradient = {};
                r.frozen = true;
              }),
              IsOk());
}

TEST_F(CheckRangesTest, RejectsMismatchedLengths) {
  const auto is = [](const std::string& what) {
    return StatusIs(kInvalid, HasSubstr("range 0 (w): " + what +
                                        " has 99 elements, the parameter 100"));
  };
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span<const float>(g_).first(99);
              }),
              is("gradient"));
  EXPECT_THAT(Check([](ParameterRange& r) { r.first.size = 99; }),
              is("first moment"));
  EXPECT_THAT(Check([](ParameterRange& r) { r.second.size = 99; }),
              is("second moment"));
  EXPECT_THAT(
      Check([&](ParameterRange& r) { r.copy = std::span(c_).first(99); }),
      is("copy"));
}

TEST_F(CheckRangesTest, RejectsOtherTypes) {
  EXPECT_THAT(Check([&](ParameterRange& r) { r.parameter = std::span(c_); }),
              StatusIs(kInvalid, HasSubstr("keep f32 master weights")));
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span<const double>(wide_);
              }),
              StatusIs(kInvalid, HasSubstr("gradient is f64; f32 parameters")));
  EXPECT_THAT(Check([&](ParameterRange& r) { r.parameter = std::span(wide_); }),
              StatusIs(kInvalid, HasSubstr("f64 parameters take f64")));
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.first = MomentSpan::Of(std::span(wide_));
              }),
              StatusIs(kInvalid, HasSubstr("first moment is f64")));
  EXPECT_THAT(
      Check([&](ParameterRange& r) { r.copy = TypedSpan(std::span(wide_)); }),
      StatusIs(kInvalid, HasSubstr("copy is f64")));
  EXPECT_THAT(Check([](ParameterRange& r) { r.first.format.block = 5; }),
              StatusIs(kInvalid, HasSubstr("with a block of 5")));
}

TEST_F(CheckRangesTest, RejectsMissingAndMisalignedData) {
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.gradient = ConstTypedSpan(nullptr, DType::kF32, 100);
              }),
              StatusIs(kInvalid, HasSubstr("gradient has no data")));
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.parameter = TypedSpan(r.parameter.data() + 2, DType::kF32, 1);
                r.gradient = ConstTypedSpan(r.gradient.data(), DType::kF32, 1);
              }),
              StatusIs(kInvalid, HasSubstr("parameter starts at an address "
                                           "that is not a multiple of 4")));
  EXPECT_THAT(Check([](ParameterRange& r) { ++r.second.values; }),
              StatusIs(kInvalid, HasSubstr("second moment starts at")));
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.copy = TypedSpan(r.copy.data() + 1, DType::kBF16, 100);
              }),
              StatusIs(kInvalid, HasSubstr("not a multiple of 2")));
}

TEST_F(CheckRangesTest, RejectsRangesThatSplitBlocks) {
  const auto with = [&](int64_t begin, int64_t whole) {
    return Check(
        [&](ParameterRange& r) {
          r.first =
              *MomentSpan::Over(MomentFormat::Blockwise8(64), 100, codes_);
          r.begin = begin;
          r.whole = whole;
        },
        1);
  };
  EXPECT_THAT(with(128, 0), IsOk());
  EXPECT_THAT(with(128, 228), IsOk());
  EXPECT_THAT(with(70, 0),
              StatusIs(kInvalid, AllOf(HasSubstr("first moment: begin: "),
                                       HasSubstr("are 64 and 128"))));
  EXPECT_THAT(
      with(128, 500),
      StatusIs(kInvalid, HasSubstr("end: element 228 is inside a block")));
  EXPECT_THAT(with(128, 200),
              StatusIs(kInvalid, HasSubstr("does not lie in the whole of")));
  EXPECT_THAT(with(-64, 0), StatusIs(kInvalid));
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.first = *MomentSpan::Over(MomentFormat::Blockwise8(64), 100,
                                            codes_);
                r.first.largest = r.first.largest.first(1);
              }),
              StatusIs(kInvalid, HasSubstr("has 1 scales of blocks")));
}

TEST_F(CheckRangesTest, RejectsOverlaps) {
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span<const float>(p_);
              }),
              StatusIs(kInvalid, HasSubstr("overlaps the")));
  EXPECT_THAT(Check([](ParameterRange& r) { r.second = r.first; }),
              StatusIs(kInvalid, HasSubstr("moment of range 0 (w) overlaps")));
  // The last byte of one overlaps the first of the next.
  std::vector<float> both(199);
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.first = MomentSpan::Of(std::span(both).first(100));
                r.second = MomentSpan::Of(std::span(both).last(100));
              }),
              StatusIs(kInvalid, HasSubstr("second moment")));
  // Only gradients may be shared.
  std::vector<float> p(100), m(100), v(100);
  const ParameterRange ranges[] = {
      Valid(),
      {.parameter = std::span(p),
       .gradient = std::span<const float>(g_),
       .first = MomentSpan::Of(std::span(m)),
       .second = MomentSpan::Of(std::span(v))},
  };
  EXPECT_THAT(CheckRanges(ranges, 2), IsOk());
  const ParameterRange twice[] = {Valid(), Valid()};
  EXPECT_THAT(CheckRanges(twice, 2), StatusIs(kInvalid));
}

TEST_F(CheckRangesTest, NamesTheRangeInFewWords) {
  const std::string name(1000, 'x');
  ParameterRange bad = Valid();
  bad.name = name;
  bad.first.size = 3;
  const ParameterRange ranges[] = {{}, bad};
  const absl::Status status = CheckRanges(ranges, 2);
  EXPECT_THAT(status, StatusIs(kInvalid, HasSubstr("range 1 (xxx")));
  EXPECT_LT(status.message().size(), 200u);
}

}  // namespace

}  // namespace tessera::offload
