#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

Ops& Kernels() {
  static Ops& ops = *CreateCudaOps(HostQueue())->release();
  return ops;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  Problem(DType dtype, int64_t rows, IndexRange held, int64_t gap,
          std::mt19937_64& random)
      : held(held),
        logits(dtype, {rows, held.size()}, gap),
        largest(StatisticsFor(dtype), {rows}),
        sum(StatisticsFor(dtype), {rows}),
        picked(StatisticsFor(dtype), {rows}),
        losses(DType::kF64, {rows}) {
    logits.Randomise(random, 4);
    for (int64_t i = 0; i < rows; ++i) {
      targets.push_back(held.begin - 1 +
                        static_cast<int64_t>(random() % (held.size() + 2)));
      scales.push_back(i % 4 == 3 ? 0 : 0.25 * static_cast<double>(i + 1));
    }
    // With all terms, and each alone.
    const int64_t which = static_cast<int64_t>(random() % 4);
    if (which % 2 == 1) {
      terms.label_smoothing = 0.25;
      terms.vocabulary = held.end + 3;
    }
    if (which / 2 == 1) terms.z_loss = 0.125;
  }

  void RunParts(bool is_fused = false) {
    if (is_fused) {
      TESSERA_ASSERT_OK(Kernels().Run(
          op::MaxAndSumExp{logits.view(), largest.view(), sum.view()}));
    } else {
      TESSERA_ASSERT_OK(
          Kernels().Run(op::RowMax{logits.view(), largest.view()}));
      TESSERA_ASSERT_OK(
          Kernels().Run(op::SumExp{logits.view(), largest.view(), sum.view()}));
    }
    TESSERA_ASSERT_OK(Kernels().Run(
        op::Pick{logits.view(), held, ListOf(targets), picked.view()}));
    TESSERA_ASSERT_OK(Kernels().Run(
        op::CrossEntropyLosses{largest.view(), sum.view(), picked.view(),
                               ListOf(targets), losses.view()}));
    TESSERA_ASSERT_OK(Kernels().Run(op::CrossEntropyGradient{
        largest.view(), sum.view(), held, ListOf(targets), ListOf(scales),
        terms, logits.view()}));
  }
  void RunFused() { RunParts(/*is_fused=*/true); }

  IndexRange held;
  TestTensor logits, largest, sum, picked, losses;
  std::vector<int64_t> targets;
  std::vector<double> scales;
  LossTerms terms;
};

struct Reference {
  explicit Reference(const Problem& p)
      : gradient(p.logits.size(), 0),
        largest(p.targets.size(), -kInfinity),
        sum(p.targets.size(), 0),
        losses(p.targets.size(), 0) {
    const int64_t n = p.held.size();
    const std::vector<double> x = p.logits.values();
    for (size_t i = 0; i < p.targets.size(); ++i) {
      const double* const row = x.data() + static_cast<int64_t>(i) * n;
      for (int64_t j = 0; j < n; ++j) largest[i] = std::max(largest[i], row[j]);
      for (int64_t j = 0; j < n; ++j) sum[i] += std::exp(row[j] - largest[i]);
      const bool is_held = p.held.contains(p.targets[i]);
      const int64_t target = p.targets[i] - p.held.begin;
      if (p.targets[i] < 0) continue;
      losses[i] = std::log(sum[i]) + largest[i] - (is_held ? row[target] : 0);
      for (int64_t j = 0; j < n; ++j) {
        gradient[static_cast<int64_t>(i) * n + j] =
            (std::exp(row[j] - largest[i]) / sum[i] *
                 (1 + 2 * p.terms.z_loss * (std::log(sum[i]) + largest[i])) -
             (is_held && j == target ? 1 - p.terms.label_smoothing : 0) -
             (p.terms.label_smoothing == 0
                  ? 0
                  : p.terms.label_smoothing /
                        static_cast<double>(p.terms.vocabulary))) *
            p.scales[i];
      }
    }
  }

  std::vector<double> gradient, largest, sum, losses;
};

void ExpectLosses(const Problem& p, const Reference& expected) {
  const double tolerance = p.logits.dtype() == DType::kF64 ? 1e-12 : 1e-5;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const double loss = p.losses.at(static_cast<int64_t>(i));
    if (std::isinf(expected.losses[i])) {
      EXPECT_EQ(loss, expected.losses[i]);
    } else {
      EXPECT_NEAR(loss, expected.losses[i],
                  tolerance * std::max(1.0, std::abs(expected.losses[i])));
    }
  }
}

template <typename Functor>
void ForProblems(const Functor& functor) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const int64_t rows : {0, 1, 6}) {
      for (const IndexRange held :
           {IndexRange{0, 1}, IndexRange{5, 12}, IndexRange{100, 116},
            IndexRange{7, 140}, IndexRange{0, 2048}, IndexRange{3, 5003},
            IndexRange{3, 3}}) {
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(testing::Message() << dtype << " " << rows << held);
          Problem problem(dtype, rows, held, gap, random);
          functor(problem);
        }
      }
    }
  }
}

TEST(CrossEntropyKernelsTest, PartsAreTheFormula) {
  ForProblems([](Problem& p) {
    const Reference expected(p);
    p.RunParts();
    ExpectClose(p.largest, expected.largest);
    ExpectClose(p.sum, expected.sum);
    ExpectLosses(p, expected);
    ExpectClose(p.logits, expected.gradient, 2);
    EXPECT_TRUE(p.logits.GapsAreIntact());
  });
}

TEST(CrossEntropyKernelsTest, FusedIsTheFormula) {
  ForProblems([](Problem& p) {
    const Reference expected(p);
    p.RunFused();
    ExpectClose(p.largest, expected.largest);
    ExpectClose(p.sum, expected.sum);
    ExpectLosses(p, expected);
    ExpectClose(p.logits, expected.gradient, 2);
    EXPECT_TRUE(p.logits.GapsAreIntact());
  });
}

// But for the order of sums, whose type is that of statistics.
TEST(CrossEntropyKernelsTest, FusedIsWhatThePartsGive) {
  ForProblems([](Problem& p) {
    Problem parts = p;
    parts.RunParts();
    p.RunFused();
    const double tolerance = p.logits.dtype() == DType::kF64 ? 1e-12 : 1e-5;
    for (int64_t i = 0; i < p.losses.size(); ++i) {
      const double expected = parts.losses.at(i);
      if (p.losses.at(i) == expected) continue;  // Infinite, for example.
      EXPECT_NEAR(p.losses.at(i), expected,
                  tolerance * std::max(1.0, std::abs(expected)));
    }
    ExpectClose(p.logits, parts.logits.values(), 2);
  });
}

TEST(CrossEntropyKernelsTest, ANaNAnywhereIsFound) {
  std::mt19937_64 random(3);
  for (int64_t place = 0; place < 300; place += 7) {
    Problem p(DType::kF32, 1, {0, 300}, 0, random);
    p.logits.set(place, std::numeric_limits<double>::quiet_NaN());
    TESSERA_ASSERT_OK(
        Kernels().Run(op::RowMax{p.logits.view(), p.largest.view()}));
    EXPECT_TRUE(std::isnan(p.largest.at(0))) << place;
    p.RunFused();
    EXPECT_TRUE(std::isnan(p.losses.at(0))) << place;
  }
}

TEST(CrossEntropyKernelsTest, RowsOfScaleZeroAreZeroWhateverTheyHold) {
  std::mt19937_64 random(4);
  for (const bool is_fused : {false, true}) {
    Problem p(DType::kBF16, 1, {0, 21}, 0, random);
    p.logits.set(2, std::numeric_limits<double>::quiet_NaN());
    p.scales = {0};
    p.RunParts(is_fused);
    EXPECT_EQ(p.logits.values(), std::vector<double>(21, 0.0));
  }
}

TEST(CrossEntropyKernelsTest, RowsWithoutTargetAreZeroWhateverTheyHold) {
  std::mt19937_64 random(7);
  for (const bool is_fused : {false, true}) {
    Problem p(DType::kF32, 2, {0, 21}, 0, random);
    p.logits.set(2, std::numeric_limits<double>::quiet_NaN());
    p.targets = {kNoTarget, 3};
    p.scales = {1, 1};
    p.RunParts(is_fused);
    EXPECT_EQ(p.losses.at(0), 0);
    EXPECT_GT(p.losses.at(1), 0);
    for (int64_t j = 0; j < 21; ++j) {
      EXPECT_EQ(p.logits.at(j), 0);
      EXPECT_NE(p.logits.at(21 + j), 0);
    }
  }
}

TEST(CrossEntropyKernelsTest, LogitsOfMinusInfinityHaveNoShare) {
  std::mt19937_64 random(5);
  for (const bool is_fused : {false, true}) {
    Problem p(DType::kF32, 1, {0, 700}, 0, random);
    p.targets = {600};
    p.scales = {1};
    for (int64_t j = 0; j < 600; ++j) p.logits.set(j, -kInfinity);
    const Reference expected(p);
    p.RunParts(is_fused);
    ExpectLosses(p, expected);
    ExpectClose(p.logits, expected.gradient, 2);
  }
}

TEST(CrossEntropyKernelsTest, LargeLogitsDoNotAbsorbTheLogarithm) {
  std::mt19937_64 random(6);
  for (const bool is_fused : {false, true}) {
    Problem p(DType::kF32, 1, {0, 2}, 0, random);
    p.logits.Set({1e7, 1e7});
    p.targets = {1};
    p.scales = {1};
    p.RunParts(is_fused);
    EXPECT_NEAR(p.losses.at(0), std::log(2.0), 1e-7);
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
