#include "tools/comm_bench/pattern.h"

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using collectives::Buffer;
using collectives::ConstBuffer;
using collectives::kAllReduceOps;
using collectives::ReduceOp;
using collectives::Reduction;
using ::testing::HasSubstr;
using topology::Rank;

class Memory {
 public:
  Memory(DType dtype, int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(static_cast<size_t>(count * SizeInBytes(dtype))) {}

  Buffer buffer() { return Buffer(bytes_.data(), count_, dtype_); }

  std::vector<double> Doubles() {
    std::vector<double> values(static_cast<size_t>(count_));
    EXPECT_THAT(Convert(dtype_, bytes_, DType::kF64,
                        std::as_writable_bytes(std::span(values))),
                IsOk());
    return values;
  }
  void Set(const std::vector<double>& values) {
    EXPECT_THAT(
        Convert(DType::kF64, std::as_bytes(std::span(values)), dtype_, bytes_),
        IsOk());
  }

 private:
  DType dtype_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

Reduction ReductionOf(ReduceOp op, DType dtype) {
  Reduction reduction;
  reduction.op = op;
  if (op == ReduceOp::kScaledSum) reduction.scale = IsFloating(dtype) ? 0.5 : 2;
  return reduction;
}

// By hand, in float64.
std::vector<double> ReduceAll(const Pattern& pattern, DType dtype,
                              const Reduction& reduction, int64_t world,
                              int64_t count, int64_t first, int64_t iteration) {
  std::vector<double> result;
  for (int64_t r = 0; r < world; ++r) {
    Memory memory(dtype, count);
    pattern.Fill(memory.buffer(), Rank(r), first, iteration);
    const std::vector<double> own = memory.Doubles();
    if (r == 0) result.assign(own.size(), reduction.op == ReduceOp::kProduct);
    for (size_t i = 0; i < own.size(); ++i) {
      const double x = own[i];
      double& y = result[i];
      switch (reduction.op) {
        case ReduceOp::kProduct:
          y *= x;
          break;
        case ReduceOp::kMin:
          y = r == 0 ? x : std::min(x, y);
          break;
        case ReduceOp::kMax:
          y = r == 0 ? x : std::max(x, y);
          break;
        default:
          y += reduction.scale * x;
      }
    }
  }
  if (reduction.op == ReduceOp::kAverage) {
    for (double& y : result) y /= static_cast<double>(world);
  }
  return result;
}

TEST(PatternTest, TheReductionOfAllRanksIsExact) {
  constexpr int64_t kCount = 3000;  // Several periods.
  for (const DType dtype : kAllDTypes) {
    if (!collectives::IsReducible(dtype)) continue;
    for (const ReduceOp op : kAllReduceOps) {
      for (const int64_t world : {1, 2, 3, 7, 8}) {
        const Reduction reduction = ReductionOf(op, dtype);
        TESSERA_ASSERT_OK_AND_ASSIGN(const Pattern pattern,
                                     Pattern::Create(dtype, reduction, world));
        const std::vector<double> expected =
            ReduceAll(pattern, dtype, reduction, world, kCount, 17, 5);
        Memory memory(dtype, kCount);
        memory.Set(expected);
        ASSERT_EQ(memory.Doubles(), expected);  // All are representable.
        EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 17, 5), IsOk())
            << DTypeName(dtype) << " " << ReduceOpName(op) << " " << world;
      }
    }
  }
}

TEST(PatternTest, OneWrongElementIsFoundAnywhere) {
  constexpr int64_t kCount = 2100;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern, Pattern::Create(DType::kF32, Reduction::Sum(), 4));
  Memory memory(DType::kF32, kCount);
  const std::vector<double> expected =
      ReduceAll(pattern, DType::kF32, Reduction::Sum(), 4, kCount, 0, 1);
  for (const size_t at : {0, 1, 1020, 1021, 2099}) {
    std::vector<double> wrong = expected;
    wrong[at] += 1;
    memory.Set(wrong);
    EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 0, 1),
                StatusIs(absl::StatusCode::kInternal,
                         HasSubstr("element " + std::to_string(at) + " is ")));
  }
}

TEST(PatternTest, AverageMayDifferByItsLastBitOnly) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern,
      Pattern::Create(DType::kF32, Reduction::Average(), 3));
  std::vector<double> values =
      ReduceAll(pattern, DType::kF32, Reduction::Average(), 3, 100, 0, 0);
  Memory memory(DType::kF32, 100);
  size_t at = 0;
  while (values[at] == 0) ++at;
  const float exact = static_cast<float>(values[at]);
  values[at] = std::nextafterf(exact, 1e9f);
  memory.Set(values);
  EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 0, 0), IsOk());
  values[at] = exact * 1.0001;
  memory.Set(values);
  EXPECT_FALSE(pattern.CheckReduced(memory.buffer(), 0, 0).ok());
}

TEST(PatternTest, OldResultsAndOtherRanksAreWrong) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern, Pattern::Create(DType::kI32, Reduction::Sum(), 4));
  Memory memory(DType::kI32, 64);
  pattern.Fill(memory.buffer(), Rank(2), 10, 3);
  EXPECT_THAT(pattern.CheckCopied(memory.buffer(), Rank(2), 10, 3), IsOk());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(1), 10, 3).ok());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(2), 11, 3).ok());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(2), 10, 2).ok());
  EXPECT_FALSE(pattern.CheckReduced(memory.buffer(), 10, 3).ok());
}

TEST(PatternTest, TypesThatCannotBeReducedCanMove) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern,
      Pattern::Create(DType::kF8E4M3, Reduction::Max(), 4));
  Memory memory(DType::kF8E4M3, 64);
  pattern.Fill(memory.buffer(), Rank(2), 0, 0);
  EXPECT_THAT(pattern.CheckCopied(memory.buffer(), Rank(2), 0, 0), IsOk());
}

TEST(PatternTest, WhatCannotBeExactIsRefused) {
  EXPECT_THAT(Pattern::Create(DType::kI8, Reduction::Average(), 200),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("average of i8 over 200 ranks")));
}

}  // namespace
}  // namespace tessera::tools
