#include "tensor_parallel/random/dropout.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr RandomKey kKey = {.seed = 5, .stream = 9};

Tensor Ones(DType dtype, int64_t rows, int64_t width) {
  Tensor x = *Tensor::Create(dtype, {{rows, width}});
  TESSERA_EXPECT_OK(Fill(x.view(), 1.0));
  return x;
}

std::vector<double> ValuesOf(const Tensor& x) {
  const std::span<const double> values = *x.view().AsSpan<double>();
  return {values.begin(), values.end()};
}

TEST(DropoutTest, DropsItsShareAndScalesTheRest) {
  constexpr int64_t kRows = 200, kWidth = 501;
  std::vector<int64_t> rows(kRows);
  for (int64_t i = 0; i < kRows; ++i) rows[static_cast<size_t>(i)] = 3 * i + 7;
  const Philox random(kKey);
  for (const double probability : {0.0, 0.1, 0.5, 0.99}) {
    Tensor x = Ones(DType::kF64, kRows, kWidth);
    TESSERA_ASSERT_OK(ApplyDropout({kKey, probability, rows}, x.view()));
    const std::vector<double> y = ValuesOf(x);
    double dropped = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto row = static_cast<uint64_t>(rows[i / kWidth]);
      const bool kept =
          random.Uniform(row * kWidth + i % kWidth) >= probability;
      dropped += kept ? 0 : 1;
      EXPECT_EQ(y[i], kept ? 1 / (1 - probability) : 0);
    }
    // Four standard deviations.
    const auto count = static_cast<double>(y.size());
    EXPECT_NEAR(dropped / count, probability,
                4 * std::sqrt(probability * (1 - probability) / count));
  }
}

TEST(DropoutTest, RowsHaveTheSameMaskInAnyCompany) {
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5};
  const std::vector<int64_t> some = {4, 1};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    Tensor whole = Ones(dtype, 6, 33), part = Ones(dtype, 2, 33);
    TESSERA_ASSERT_OK(ApplyDropout({kKey, 0.5, all}, whole.view()));
    TESSERA_ASSERT_OK(ApplyDropout({kKey, 0.5, some}, part.view()));
    const auto row_bytes = static_cast<size_t>(33 * SizeInBytes(dtype));
    for (size_t i = 0; i < some.size(); ++i) {
      const std::byte* const want =
          whole.view().data() + static_cast<size_t>(some[i]) * row_bytes;
      const std::byte* const got = part.view().data() + i * row_bytes;
      EXPECT_TRUE(std::equal(got, got + row_bytes, want)) << dtype << i;
    }
  }
}

TEST(DropoutTest, KeysHaveOtherMasks) {
  const std::vector<int64_t> rows = {0, 1};
  const auto mask = [&](const RandomKey& key) {
    Tensor x = Ones(DType::kF64, 2, 64);
    TESSERA_EXPECT_OK(ApplyDropout({key, 0.5, rows}, x.view()));
    return ValuesOf(x);
  };
  EXPECT_EQ(mask(kKey), mask(kKey));
  EXPECT_NE(mask(kKey), mask({.seed = 6, .stream = 9}));
  EXPECT_NE(mask(kKey), mask({.seed = 5, .stream = 10}));
}

TEST(DropoutTest, InvalidArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<int64_t> rows = {0, 1};
  Tensor x = Ones(DType::kF64, 2, 8);
  const auto refused = [&](const DropoutMask& mask, auto says) {
    EXPECT_THAT(ApplyDropout(mask, x.view()),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
    EXPECT_THAT(ValuesOf(x), Each(1));
  };
  for (const double probability :
       {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    refused({kKey, probability, rows}, HasSubstr("must be in [0, 1)"));
  }
  refused({kKey, 0.5, std::span(rows).first(1)},
          AllOf(HasSubstr("dropout of f64"), HasSubstr("of 1 rows")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
