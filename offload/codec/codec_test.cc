// Tests the contract of every codec, over all codecs and dtypes.
#include "offload/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/plane_coder.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Sizes around the blocks of all codecs, a chunk and a group.
const std::vector<size_t> kCounts = {0,   1,   2,    3,    31,   32,   33,
                                     63,  64,  65,   127,  128,  129,  255,
                                     257, 511, 4095, 4096, 4097, 16385};

std::unique_ptr<Codec> Make(std::string_view name) {
  auto codec = CreateCodec(name);
  EXPECT_THAT(codec, IsOk());
  return *std::move(codec);
}

// All codec names except the alias of nf4.
std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (std::string_view name : CodecNames()) {
    const bool is_built =
        CreateCodec(name).status().code() != Code::kUnimplemented;
    if (name != "quantization" && is_built) names.emplace_back(name);
  }
  return names;
}

class EveryCodec
    : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  size_t size() const { return static_cast<size_t>(SizeInBytes(dtype())); }

  const std::unique_ptr<Codec> codec_ = Make(std::get<0>(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(, EveryCodec,
                         ::testing::Combine(::testing::ValuesIn(Names()),
                                            ::testing::ValuesIn(kAllDTypes)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(
                                      DTypeName(std::get<1>(info.param)));
                         });

TEST_P(EveryCodec, KeepsItsErrorBoundForAnyCount) {
  EXPECT_EQ(codec_->name(), std::get<0>(GetParam()));
  for (const size_t count : kCounts) {
    const Bytes values = NormalArray(dtype(), count, 0.02, count + 1);
    EXPECT_LE(WorstShareOfBound(*codec_, dtype(), values), 1) << count;
  }
}

TEST_P(EveryCodec, IsExactIfLossless) {
  const ErrorBound bound = codec_->MaxError(dtype()).value();
  EXPECT_EQ(codec_->IsLossless(dtype()), bound.IsZero());
  EXPECT_EQ(bound.block == 0, bound.of_block == 0);
  EXPECT_EQ(bound.group == 0, bound.of_group == 0);
  if (!codec_->IsLossless(dtype())) return;
  for (const size_t count : kCounts) {
    const Bytes values = RandomBytes(count * size(), count);
    EXPECT_EQ(Decoded(*codec_, dtype(), Encoded(*codec_, dtype(), values),
                      values.size()),
              values)
        << count;
  }
}

TEST_P(EveryCodec, IsIdenticalOnEveryInstructionSet) {
  for (const size_t count : {0, 1, 65, 129, 4161, 16447, 70001}) {
    const Bytes values = NormalArray(dtype(), count, 0.02, 7);
    Bytes encoded, decoded;
    ForEachInstructionSet([&] {
      const Bytes e = Encoded(*codec_, dtype(), values);
      if (encoded.empty()) encoded = e;
      EXPECT_TRUE(e == encoded) << count;
      const Bytes d = Decoded(*codec_, dtype(), encoded, values.size());
      if (decoded.empty()) decoded = d;
      EXPECT_TRUE(d == decoded) << count;
    });
  }
}

TEST_P(EveryCodec, AcceptsUnalignedBuffers) {
  const Bytes values = NormalArray(dtype(), 5003, 0.02, 3);
  const Bytes encoded = Encoded(*codec_, dtype(), values);
  const Bytes decoded = Decoded(*codec_, dtype(), encoded, values.size());
  for (size_t shift = 1; shift < 8; shift += 2) {
    Bytes moved(values.size() + shift);
    std::copy(values.begin(), values.end(), moved.begin() + shift);
    const size_t room = codec_->MaxEncodedBytes(dtype(), 5003).value();
    Bytes held(room + shift);
    const auto bytes = codec_->Encode(dtype(), std::span(moved).subspan(shift),
                                      std::span(held).subspan(shift));
    ASSERT_THAT(bytes, IsOkAndHolds(static_cast<int64_t>(encoded.size())));
    const auto part = std::span(held).subspan(shift, encoded.size());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), encoded.begin()));
    Bytes back(values.size() + shift);
    TESSERA_EXPECT_OK(
        codec_->Decode(dtype(), part, std::span(back).subspan(shift)));
    EXPECT_TRUE(std::equal(back.begin() + shift, back.end(), decoded.begin()));
  }
}

TEST_P(EveryCodec, NeverWritesPastMaxEncodedBytes) {
  for (const size_t count : kCounts) {
    const Bytes values = NormalArray(dtype(), count, 0.02, 5);
    const size_t room = codec_->MaxEncodedBytes(dtype(), count).value();
    Bytes encoded(room + 8, std::byte{0x5a});
    TESSERA_ASSERT_OK(codec_->Encode(dtype(), values, encoded));
    for (size_t i = room; i < room + 8; ++i) {
      EXPECT_EQ(encoded[i], std::byte{0x5a});
    }
  }
}

TEST_P(EveryCodec, RejectsTooSmallBuffer) {
  const Bytes values = NormalArray(dtype(), 300, 0.02, 5);
  const int64_t room = codec_->MaxEncodedBytes(dtype(), 300).value();
  Bytes encoded(static_cast<size_t>(room) - 1);
  EXPECT_THAT(codec_->Encode(dtype(), values, encoded),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("need " + std::to_string(room)),
                             HasSubstr("300"),
                             HasSubstr(std::string(codec_->name())))));
}

TEST_P(EveryCodec, RejectsOtherElementCount) {
  const Bytes encoded =
      Encoded(*codec_, dtype(), NormalArray(dtype(), 300, 0.02, 5));
  for (const size_t count : {0, 299, 301}) {
    Bytes values(count * size());
    EXPECT_THAT(codec_->Decode(dtype(), encoded, values),
                StatusIs(Code::kInvalidArgument, HasSubstr("300 elements")));
  }
}

TEST_P(EveryCodec, RejectsAnotherDtype) {
  const Bytes encoded =
      Encoded(*codec_, dtype(), NormalArray(dtype(), 300, 0.02, 5));
  for (const DType other : kAllDTypes) {
    if (other == dtype()) continue;
    Bytes values(300 * static_cast<size_t>(SizeInBytes(other)));
    EXPECT_THAT(codec_->Decode(other, encoded, values),
                StatusIs(Code::kInvalidArgument,
                         HasSubstr(std::string(DTypeName(dtype())))));
  }
}

TEST_P(EveryCodec, RejectsEncodingOfAnotherCodec) {
  const Bytes values = NormalArray(dtype(), 300, 0.02, 5);
  for (const std::string& name : Names()) {
    const bool both_lossless =
        name.starts_with("lossless") && codec_->name().starts_with("lossless");
    if (name == codec_->name() || both_lossless) continue;
    Bytes back(values.size());
    EXPECT_THAT(
        codec_->Decode(dtype(), Encoded(*Make(name), dtype(), values), back),
        StatusIs(Code::kInvalidArgument, HasSubstr("format")));
  }
}

TEST_P(EveryCodec, RejectsTruncatedAndLongerEncodings) {
  const Bytes values = NormalArray(dtype(), 300, 0.02, 5);
  const Bytes encoded = Encoded(*codec_, dtype(), values);
  Bytes back(values.size());
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    EXPECT_THAT(codec_->Decode(dtype(), std::span(encoded).first(bytes), back),
                StatusIs(Code::kDataLoss, HasSubstr("damaged")))
        << bytes;
  }
  Bytes longer = encoded;
  longer.push_back(std::byte{0});
  EXPECT_THAT(codec_->Decode(dtype(), longer, back),
              StatusIs(Code::kDataLoss, HasSubstr("damaged")));
}

TEST_P(EveryCodec, RejectsBrokenElementsAndOverlaps) {
  Bytes memory(4096);
  const std::span<std::byte> all(memory);
  if (size() > 1) {
    EXPECT_THAT(codec_->Encode(dtype(), all.first(size() + 1), all.last(2048)),
                StatusIs(Code::kInvalidArgument, HasSubstr("whole number")));
    EXPECT_THAT(codec_->Decode(dtype(), all.last(2048), all.first(size() + 1)),
                StatusIs(Code::kInvalidArgument, HasSubstr("whole number")));
  }
  EXPECT_THAT(codec_->Encode(dtype(), all.first(64), all.subspan(63, 2048)),
              StatusIs(Code::kInvalidArgument, HasSubstr("overlap")));
  const Bytes encoded = Encoded(*codec_, dtype(), Bytes(64));
  std::copy(encoded.begin(), encoded.end(), memory.begin());
  EXPECT_THAT(codec_->Decode(dtype(), all.first(encoded.size()),
                             all.subspan(encoded.size() - 1, 64)),
              StatusIs(Code::kInvalidArgument, HasSubstr("overlap")));
}

TEST_P(EveryCodec, RejectsInvalidDtypesAndNumbers) {
  const auto invalid = static_cast<DType>(10);
  Bytes memory(64);
  EXPECT_FALSE(codec_->IsLossless(invalid));
  const auto refusal =
      StatusIs(Code::kInvalidArgument, HasSubstr("dtype number 10"));
  EXPECT_THAT(codec_->MaxError(invalid), refusal);
  EXPECT_THAT(codec_->MaxEncodedBytes(invalid, 1), refusal);
  EXPECT_THAT(codec_->Encode(invalid, memory, {}), refusal);
  EXPECT_THAT(codec_->Decode(invalid, memory, {}), refusal);
  for (const int64_t elements :
       {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(
        codec_->MaxEncodedBytes(dtype(), elements),
        StatusIs(Code::kInvalidArgument, HasSubstr(std::to_string(elements))));
  }
}

TEST_P(EveryCodec, EncodesOrNamesNonFiniteValues) {
  if (!IsFloating(dtype()) || dtype() == DType::kF8E4M3) return;
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    std::vector<double> numbers(5000, 0.5);
    numbers[4321] = bad;
    const Bytes values = ArrayOf(dtype(), numbers);
    Bytes encoded(codec_->MaxEncodedBytes(dtype(), 5000).value());
    const auto bytes = codec_->Encode(dtype(), values, encoded);
    if (!bytes.ok()) {
      EXPECT_GT(codec_->MaxError(dtype())->of_block, 0);
      EXPECT_THAT(bytes,
                  StatusIs(Code::kInvalidArgument,
                           AllOf(HasSubstr("element 4321 of 5000"),
                                 HasSubstr(std::isnan(bad) ? "nan" : "inf"))));
      continue;
    }
    encoded.resize(*bytes);
    const Bytes back = Decoded(*codec_, dtype(), encoded, values.size());
    const double held = ValueAt(dtype(), back, 4321);
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(held) : held == bad);
  }
}

// The least ratio for weights, without 100 bytes of headers.
double LeastRatio(std::string_view name, DType dtype) {
  const double bits = 8.0 * static_cast<double>(SizeInBytes(dtype));
  if (name == "lossless" && HasPlaneMethod(PlaneMethod::kZstd)) {
    if (dtype == DType::kBF16) return 1.48;
    if (dtype == DType::kF32) return 1.18;
    if (dtype == DType::kF64) return 1.13;
    if (dtype == DType::kI32) return 2;
  }
  if (name == "lossless_fast" && dtype == DType::kBF16) return 1.42;
  if (name == "lossless_fast" && dtype == DType::kF32) return 1.17;
  if (!IsFloating(dtype)) return 1;
  if (name == "fp16" || name == "bf16") return std::max(1.0, bits / 16);
  if (name == "int8") return std::max(1.0, bits / 8.25);
  if (name == "nf4") return bits / 4.5;
  if (name == "nf4_double") return bits / 4.13;
  return 1;
}

TEST_P(EveryCodec, ReachesPromisedRatio) {
  const Bytes values = NormalArray(dtype(), 1 << 18, 0.02, 11);
  const Bytes encoded = Encoded(*codec_, dtype(), values);
  EXPECT_GE(double(values.size()) / double(encoded.size() - 100),
            LeastRatio(codec_->name(), dtype()));
}

TEST(CreateCodecTest, RejectsUnknownNameAndListsKnownOnes) {
  EXPECT_THAT(CreateCodec("gzip"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("gzip"), HasSubstr("none, fp16, bf16"),
                             HasSubstr("lossless_lz4"))));
  const auto refused = CreateCodec(std::string(100000, 'x'));
  EXPECT_THAT(refused, StatusIs(Code::kInvalidArgument, HasSubstr("xxx...")));
  EXPECT_LT(refused.status().message().size(), 300);
}

TEST(CreateCodecTest, QuantizationIsNf4) {
  EXPECT_EQ(Make("quantization")->name(), "nf4");
}

TEST(ErrorBoundTest, AddsItsParts) {
  const ErrorBound bound = {.of_value = 0.5,
                            .of_block = 0.25,
                            .of_group = 2,
                            .absolute = 1,
                            .block = 4,
                            .group = 8};
  EXPECT_EQ(bound.Of(-4, 8, 3), 2 + 2 + 6 + 1);
  EXPECT_FALSE(bound.IsZero());
  EXPECT_TRUE(ErrorBound().IsZero());
}

}  // namespace
}  // namespace tessera::offload
