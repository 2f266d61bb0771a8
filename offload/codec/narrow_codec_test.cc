#include "offload/codec/narrow_codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/dtype/float_reference.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/arrays.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

struct Case {
  const char* name;
  std::unique_ptr<Codec> (*make)();
  DType held;
  FloatReference::Layout layout;
  double first_refused;  // Rounds past the largest finite value.
};
const Case kCases[] = {
    {"fp16", MakeFp16Codec, DType::kF16, {5, 10, true}, 65520},
    {"bf16", MakeBf16Codec, DType::kBF16, {8, 7, true}, 0x1.ffp127},
};

class NarrowCodecTest : public ::testing::TestWithParam<Case> {
 protected:
  const std::unique_ptr<Codec> codec_ = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(, NarrowCodecTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Every value of the type held, the middles between neighbours and what is just
// beside these, in both signs.
std::vector<double> Hard(const FloatReference& reference) {
  std::vector<double> numbers;
  const auto& values = reference.values();
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const double middle = (values[i] + values[i + 1]) / 2;
    numbers.push_back(values[i]);
    numbers.push_back(std::nextafter(middle, 0));
    // The last middle is past what is held.
    if (i + 2 < values.size()) numbers.push_back(middle);
    if (i + 2 < values.size()) numbers.push_back(std::nextafter(middle, 1e300));
  }
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

TEST_P(NarrowCodecTest, RoundsF64ToNearestEvenOnce) {
  const FloatReference reference(GetParam().layout);
  const std::vector<double> numbers = Hard(reference);
  const Bytes values = ArrayOf(DType::kF64, numbers);
  const Bytes back =
      Decoded(*codec_, DType::kF64, Encoded(*codec_, DType::kF64, values),
              values.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int bits = reference.Round(numbers[i]);
    const double magnitude =
        reference.values()[static_cast<size_t>(bits & ~reference.sign_bit())];
    const double expected = numbers[i] < 0 ? -magnitude : magnitude;
    ASSERT_EQ(ValueAt(DType::kF64, back, i), expected) << numbers[i];
  }
  EXPECT_LE(WorstShareOfBound(*codec_, DType::kF64, values), 1);
}

TEST_P(NarrowCodecTest, RoundsF32ToNearestEven) {
  const FloatReference reference(GetParam().layout);
  std::mt19937_64 random(1);
  std::vector<double> numbers;
  while (numbers.size() < 200000) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::fabs(value) < GetParam().first_refused) numbers.push_back(value);
  }
  const Bytes values = ArrayOf(DType::kF32, numbers);
  const Bytes back =
      Decoded(*codec_, DType::kF32, Encoded(*codec_, DType::kF32, values),
              values.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int bits = reference.Round(numbers[i]);
    ASSERT_EQ(std::fabs(ValueAt(DType::kF32, back, i)),
              reference.values()[size_t(bits & ~reference.sign_bit())])
        << numbers[i];
  }
  const double worst = WorstShareOfBound(*codec_, DType::kF32, values);
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0.9);  // The bound is no larger than it must be.
}

TEST_P(NarrowCodecTest, HoldsEveryPatternOfItsType) {
  const Bytes patterns = AllPatterns();
  std::vector<double> numbers;
  for (size_t i = 0; i < 65536; ++i) {
    numbers.push_back(ValueAt(GetParam().held, patterns, i));
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Bytes values = ArrayOf(dtype, numbers);
    const Bytes encoded = Encoded(*codec_, dtype, values);
    EXPECT_EQ(encoded.size(), 16 + 2 * 65536);
    const Bytes back = Decoded(*codec_, dtype, encoded, values.size());
    EXPECT_TRUE(back == values);  // NaN included: they were quiet.
    EXPECT_TRUE(Encoded(*codec_, dtype, back) == encoded);
  }
}

TEST_P(NarrowCodecTest, RefusesFiniteValuesThatWouldBecomeInfinite) {
  const double last = std::nextafter(GetParam().first_refused, 0);
  for (const double sign : {1.0, -1.0}) {
    std::vector<double> numbers(9000, HUGE_VAL);
    numbers[8000] = sign * last;
    Bytes encoded(16 + 2 * 9000);
    TESSERA_EXPECT_OK(
        codec_->Encode(DType::kF64, ArrayOf(DType::kF64, numbers), encoded));
    numbers[8000] = sign * GetParam().first_refused;
    EXPECT_THAT(
        codec_->Encode(DType::kF64, ArrayOf(DType::kF64, numbers), encoded),
        StatusIs(Code::kInvalidArgument,
                 AllOf(HasSubstr("element 8000 of 9000"),
                       HasSubstr("would become infinite"))));
  }
}

TEST_P(NarrowCodecTest, LeavesWhatIsNotWider) {
  const Bytes patterns = AllPatterns();
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI64}) {
    EXPECT_TRUE(codec_->IsLossless(dtype));
    EXPECT_TRUE(Decoded(*codec_, dtype, Encoded(*codec_, dtype, patterns),
                        patterns.size()) == patterns);
  }
}

TEST(NoneCodecTest, HoldsTheBytes) {
  const Bytes values = RandomBytes(4000, 1);
  const Bytes encoded = Encoded(*MakeNoneCodec(), DType::kF32, values);
  EXPECT_TRUE(Bytes(encoded.begin() + 16, encoded.end()) == values);
}

}  // namespace
}  // namespace tessera::offload
