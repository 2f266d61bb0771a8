#include "tensor_parallel/random/rounded_normals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/testing/instruction_sets.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kBF16,
                             DType::kF16};

// One by one, with the C library.
std::vector<std::byte> Expected(const RandomKey& key, uint64_t first,
                                double deviation, DType dtype, size_t count) {
  const Philox random(key);
  std::vector<double> exact;
  for (size_t i = 0; i < count; ++i) {
    exact.push_back(random.Normal(first + i) * deviation);
  }
  std::vector<std::byte> rounded(count *
                                 static_cast<size_t>(SizeInBytes(dtype)));
  TESSERA_EXPECT_OK(
      Convert(DType::kF64, std::as_bytes(std::span(exact)), dtype, rounded));
  return rounded;
}

std::vector<std::byte> Filled(const RandomKey& key, uint64_t first,
                              double deviation, DType dtype, size_t count) {
  std::vector<std::byte> values(count *
                                static_cast<size_t>(SizeInBytes(dtype)));
  TESSERA_EXPECT_OK(FillRoundedNormals(key, first, deviation, dtype, values));
  return values;
}

TEST(RoundedNormalsTest, HaveTheBitsOfTheFormula) {
  constexpr size_t kCount = 300'000;
  for (const DType dtype : kDTypes) {
    for (const double deviation : {0.02, 1.0, 3e-5, -0.5}) {
      const RandomKey key = {.seed = 0x123456789abcdef0,
                             .stream = 0xfedcba9876543210};
      const uint64_t first = (uint64_t{1} << 33) - 1000;  // Carries.
      const auto expected = Expected(key, first, deviation, dtype, kCount);
      cpu::ForEachInstructionSet([&] {
        EXPECT_TRUE(Filled(key, first, deviation, dtype, kCount) == expected)
            << DTypeName(dtype) << " * " << deviation;
      });
    }
  }
}

// Intervals that hold both signs or a subnormal's rounding are not lost.
TEST(RoundedNormalsTest, HaveTheBitsOfTheFormulaIfTheyVanish) {
  for (const DType dtype : kDTypes) {
    for (const double deviation : {0.0, -0.0, 1e-7, 1e-40, 1e-45, 1e-310}) {
      const auto expected = Expected({.seed = 1}, 0, deviation, dtype, 5000);
      cpu::ForEachInstructionSet([&] {
        EXPECT_TRUE(Filled({.seed = 1}, 0, deviation, dtype, 5000) == expected)
            << DTypeName(dtype) << " * " << deviation;
      });
    }
  }
}

TEST(RoundedNormalsTest, AnyCutOfTheIndicesGivesTheSameBits) {
  const RandomKey key = {.seed = 5, .stream = 6};
  for (const DType dtype : kDTypes) {
    for (const uint64_t first : {0, 1, 2, 511, 512, 513}) {
      for (const size_t count : {0, 1, 2, 3, 15, 16, 17, 511, 512, 513, 1025}) {
        EXPECT_TRUE(Filled(key, first, 0.5, dtype, count) ==
                    Expected(key, first, 0.5, dtype, count))
            << first << " " << count;
      }
    }
  }
}

// The assumed error is a multiple of the real one.
TEST(RoundedNormalsTest, IntervalsContainTheNumbersInTheirMiddle) {
  constexpr size_t kCount = size_t{1} << 19;
  std::vector<double> low(kCount), high(kCount), exact(kCount);
  for (const uint64_t stream : {0, 1, 2}) {
    const RandomKey key = {.seed = 9, .stream = stream};
    Philox(key).FillNormal(2 * 77, std::span(exact));
    cpu::ForEachInstructionSet([&] {
      internal::BoundNormals({.key = key,
                              .first_pair = 77,
                              .low = std::span(low),
                              .high = std::span(high)});
      double worst = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const double middle = low[i] + (high[i] - low[i]) / 2;
        // The ends of the interval are rounded too.
        const double half = (high[i] - low[i]) / 2;
        worst = std::max(worst, std::abs(exact[i] - middle) / half);
      }
      EXPECT_LT(worst, 0.25);
      EXPECT_GT(worst, 0.001);
    });
  }
}

TEST(RoundedNormalsTest, RejectsPartOfAnElement) {
  std::vector<std::byte> bytes(7);
  EXPECT_THAT(FillRoundedNormals({}, 0, 1, DType::kF32, bytes),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("target of 7 bytes")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
