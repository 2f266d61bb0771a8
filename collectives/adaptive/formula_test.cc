#include "collectives/adaptive/cost_table.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

// Latency only, bandwidth only, reduction only: the numbers of rounds and of
// bytes that each algorithm's formula counts.
FormulaCosts Alpha() { return {{1, 0}, {1, 0}, 0}; }
FormulaCosts Beta() { return {{0, 1}, {0, 1}, 0}; }
FormulaCosts Gamma() { return {{0, 0}, {0, 0}, 1}; }

double Seconds(const FormulaCosts& costs, Algorithm algorithm, OpKind kind,
               int64_t bytes, int64_t ranks) {
  return FormulaSeconds(costs, algorithm, kind, bytes, ranks, ranks);
}

constexpr double kClose = 1e-6;

TEST(FormulaTest, RingAllReduce) {
  const auto ring = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kRing, OpKind::kAllReduce, 800, 8);
  };
  EXPECT_NEAR(ring(Alpha()), 14, kClose);
  EXPECT_NEAR(ring(Beta()), 1400, kClose);
  EXPECT_NEAR(ring(Gamma()), 700, kClose);
}

TEST(FormulaTest, RecursiveDoublingAllReduce) {
  const auto doubling = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kRecursiveDoubling, OpKind::kAllReduce,
                   800, 8);
  };
  EXPECT_NEAR(doubling(Alpha()), 3, kClose);
  EXPECT_NEAR(doubling(Beta()), 2400, kClose);
  EXPECT_NEAR(doubling(Gamma()), 2400, kClose);
}

TEST(FormulaTest, HalvingDoublingAllReduceMovesAsLittleAsARing) {
  const auto halving = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kHalvingDoubling, OpKind::kAllReduce, 800,
                   8);
  };
  EXPECT_NEAR(halving(Alpha()), 6, kClose);
  EXPECT_NEAR(halving(Beta()), 1400, kClose);
  EXPECT_NEAR(halving(Gamma()), 700, kClose);
}

TEST(FormulaTest, BruckTradesRoundsForBytes) {
  const auto all_to_all = [](const FormulaCosts& costs, Algorithm algorithm) {
    return Seconds(costs, algorithm, OpKind::kAllToAll, 800, 8);
  };
  EXPECT_NEAR(all_to_all(Alpha(), Algorithm::kBruck), 3, kClose);
  EXPECT_NEAR(all_to_all(Alpha(), Algorithm::kPairwise), 7, kClose);
  EXPECT_NEAR(all_to_all(Beta(), Algorithm::kBruck), 1200, kClose);
  EXPECT_NEAR(all_to_all(Beta(), Algorithm::kPairwise), 700, kClose);
}

TEST(FormulaTest, MovingCostsNoReduction) {
  for (const OpKind kind : kCollectiveKinds) {
    if (Reduces(kind)) continue;
    for (const Algorithm algorithm : AlgorithmsFor(kind, false)) {
      EXPECT_NEAR(Seconds(Gamma(), algorithm, kind, 800, 8), 0, kClose)
          << kind << " " << algorithm;
    }
  }
}

TEST(FormulaTest, HierarchicalCrossesHostsInFewRounds) {
  const FormulaCosts far_only = {{0, 0}, {1, 0}, 0};
  const auto rounds = [&](Algorithm algorithm) {
    return FormulaSeconds(far_only, algorithm, OpKind::kAllReduce, 800,
                          /*ranks=*/64, /*ranks_per_host=*/8);
  };
  EXPECT_NEAR(rounds(Algorithm::kHierarchical), 6, kClose);
  EXPECT_NEAR(rounds(Algorithm::kRing), 126, kClose);
}

TEST(FormulaTest, AllAreAboveZeroAndGrowWithBytesAndRanks) {
  const FormulaCosts costs = {{1e-6, 1e-10}, {1e-5, 1e-9}, 1e-10};
  for (const OpKind kind : kCollectiveKinds) {
    for (const Algorithm algorithm : AlgorithmsFor(kind, false)) {
      EXPECT_GT(FormulaSeconds(costs, algorithm, kind, 0, 1, 1), 0);
      for (int64_t ranks = 2; ranks <= 64; ranks *= 2) {
        for (int64_t bytes = 0; bytes <= 1 << 24; bytes = 2 * bytes + 64) {
          const double here =
              FormulaSeconds(costs, algorithm, kind, bytes, ranks, ranks);
          EXPECT_GT(here, 0);
          EXPECT_LE(here, FormulaSeconds(costs, algorithm, kind, 2 * bytes + 64,
                                         ranks, ranks));
          EXPECT_LE(here, FormulaSeconds(costs, algorithm, kind, bytes,
                                         2 * ranks, 2 * ranks));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::collectives
