#include "offload/optimizer/parameter_range.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/bfloat16.h"
#include "base/dtype/float16.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/moment.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

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

TEST_F(CheckRangesTest, AcceptsWhatIsSupported) {
  EXPECT_THAT(Check([](ParameterRange&) {}), IsOk());
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span(half_);
                r.copy = {};
              }),
              IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r = {}; }), IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r.whole = 100; }), IsOk());
  EXPECT_THAT(CheckRanges({}, 2), IsOk());
  // What is not needed is not looked at.
  EXPECT_THAT(Check([](ParameterRange& r) { r.second = {}; }, 1), IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) { r.first = r.second = {}; }, 0),
              IsOk());
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.gradient = {};
                r.frozen = true;
              }),
              IsOk());
}

TEST_F(CheckRangesTest, RefusesLengthsThatDiffer) {
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

TEST_F(CheckRangesTest, RefusesOtherTypes) {
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

TEST_F(CheckRangesTest, RefusesMissingAndMisalignedData) {
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.gradient = ConstTypedSpan(nullptr, DType::kF32, 100);
              }),
              StatusIs(kInvalid, HasSubstr("gradient has no data")));
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.parameter = TypedSpan(r.parameter.data() + 2, DType::kF32, 1);
                r.gradient = ConstTypedSpan(r.gradient.data(), DType::kF32, 1);
              }),
              StatusIs(kInvalid, HasSubstr("parameter starts at an address "
                                           "that is no multiple of 4")));
  EXPECT_THAT(Check([](ParameterRange& r) { ++r.second.values; }),
              StatusIs(kInvalid, HasSubstr("second moment starts at")));
  EXPECT_THAT(Check([](ParameterRange& r) {
                r.copy = TypedSpan(r.copy.data() + 1, DType::kBF16, 100);
              }),
              StatusIs(kInvalid, HasSubstr("no multiple of 2")));
}

TEST_F(CheckRangesTest, RefusesRangesThatCutBlocks) {
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

TEST_F(CheckRangesTest, RefusesOverlaps) {
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.gradient = std::span<const float>(p_);
              }),
              StatusIs(kInvalid, HasSubstr("overlaps the")));
  EXPECT_THAT(Check([](ParameterRange& r) { r.second = r.first; }),
              StatusIs(kInvalid, HasSubstr("moment of range 0 (w) overlaps")));
  // The last byte of one and the first of the next.
  std::vector<float> both(199);
  EXPECT_THAT(Check([&](ParameterRange& r) {
                r.first = MomentSpan::Of(std::span(both).first(100));
                r.second = MomentSpan::Of(std::span(both).last(100));
              }),
              StatusIs(kInvalid, HasSubstr("second moment")));
  // Gradients alone may be shared.
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
