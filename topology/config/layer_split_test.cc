#include "topology/config/layer_split.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Ranges = std::vector<LayerRange>;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

// Every layer once, in order; no stage empty unless there must be one.
void ExpectPartition(const Ranges& ranges, int64_t layers, int64_t stages) {
  ASSERT_EQ(ranges.size(), static_cast<size_t>(stages));
  int64_t begin = 0;
  int64_t empty = 0;
  for (const LayerRange& range : ranges) {
    EXPECT_EQ(range.begin, begin);
    EXPECT_GE(range.end, range.begin);
    empty += range.empty() ? 1 : 0;
    begin = range.end;
  }
  EXPECT_EQ(begin, layers);
  EXPECT_EQ(empty, std::max<int64_t>(stages - layers, 0));
}

template <typename Cost>
Cost MaxLoad(const std::vector<Cost>& costs, const Ranges& ranges) {
  Cost most = 0;
  for (const LayerRange& range : ranges) {
    Cost load = 0;
    for (int64_t i = range.begin; i < range.end; ++i) load += costs[i];
    most = std::max(most, load);
  }
  return most;
}

// The least possible greatest load, by trying every contiguous partition of
// costs[begin..] over `stages` stages.
template <typename Cost>
Cost BruteForce(const std::vector<Cost>& costs, size_t begin, int64_t stages) {
  Cost load = 0;
  if (stages == 1) {
    for (size_t i = begin; i < costs.size(); ++i) load += costs[i];
    return load;
  }
  Cost best = BruteForce(costs, begin, 1);
  for (size_t end = begin; end < costs.size(); ++end) {
    best = std::min(best, std::max(load, BruteForce(costs, end, stages - 1)));
    load += costs[end];
  }
  return best;
}

template <typename Cost>
Ranges MustSplit(const std::vector<Cost>& costs, int64_t stages) {
  auto ranges =
      SplitByCost(std::span<const Cost>(costs), stages, EmptyStages::kAllowed);
  EXPECT_THAT(ranges, IsOk());
  ExpectPartition(*ranges, static_cast<int64_t>(costs.size()), stages);
  return *ranges;
}

TEST(SplitEvenlyTest, FirstStagesAreLargerByAtMostOne) {
  for (int64_t layers = 0; layers <= 40; ++layers) {
    for (int64_t stages = 1; stages <= 45; ++stages) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Ranges ranges,
          SplitEvenly(layers, stages, EmptyStages::kAllowed));
      ExpectPartition(ranges, layers, stages);
      EXPECT_TRUE(std::is_sorted(
          ranges.begin(), ranges.end(),
          [](const auto& a, const auto& b) { return a.size() > b.size(); }));
      EXPECT_LE(ranges.front().size() - ranges.back().size(), 1);
    }
  }
}

TEST(SplitEvenlyTest, DoesNotOverflow) {
  const int64_t layers = std::numeric_limits<int64_t>::max();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Ranges ranges, SplitEvenly(layers, 3));
  ExpectPartition(ranges, layers, 3);
}

TEST(SplitEvenlyTest, RefusesAndSaysWhatIsAllowed) {
  EXPECT_THAT(SplitEvenly(4, 5),
              Refused(HasSubstr("4 layers leave 1 of 5 stages empty"),
                      HasSubstr("at most 4 stages")));
  EXPECT_THAT(SplitEvenly(0, 2), Refused(HasSubstr("0 layers leave 2 of 2"),
                                         Not(HasSubstr("at most 0"))));
  EXPECT_THAT(SplitEvenly(4, 0), Refused(HasSubstr("over 0 stages")));
  EXPECT_THAT(SplitEvenly(4, -1), Refused(HasSubstr("over -1 stages")));
  EXPECT_THAT(SplitEvenly(4, kMaxStages + 1, EmptyStages::kAllowed),
              Refused(HasSubstr("from 1 to 1048576")));
  EXPECT_THAT(SplitEvenly(-1, 1), Refused(HasSubstr("no -1 layers")));
}

TEST(SplitByCountsTest, GivesTheCounts) {
  EXPECT_THAT(SplitByCounts(10, std::vector<int64_t>{1, 4, 4, 1}),
              IsOkAndHolds(ElementsAre(LayerRange{0, 1}, LayerRange{1, 5},
                                       LayerRange{5, 9}, LayerRange{9, 10})));
  EXPECT_THAT(
      SplitByCounts(2, std::vector<int64_t>{0, 2, 0}, EmptyStages::kAllowed),
      IsOkAndHolds(
          ElementsAre(LayerRange{0, 0}, LayerRange{0, 2}, LayerRange{2, 2})));
}

TEST(SplitByCountsTest, RefusesCountsThatDoNotAddUp) {
  using Counts = std::vector<int64_t>;
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(SplitByCounts(10, Counts{4, 4}),
              Refused(HasSubstr("add up to 8"), HasSubstr("leave out 2")));
  EXPECT_THAT(SplitByCounts(10, Counts{4, 7}),
              Refused(HasSubstr("stage 1 is to hold 7"), HasSubstr("only 6")));
  EXPECT_THAT(SplitByCounts(10, Counts{huge, huge}),
              Refused(HasSubstr("stage 0")));
  EXPECT_THAT(
      SplitByCounts(10, Counts{10, 0}),
      Refused(HasSubstr("stage 1 is to hold 0"), HasSubstr("at least 1")));
  EXPECT_THAT(SplitByCounts(10, Counts{11, -1}, EmptyStages::kAllowed),
              Refused(HasSubstr("stage 0 is to hold 11")));
  EXPECT_THAT(SplitByCounts(10, Counts{-1, 11}, EmptyStages::kAllowed),
              Refused(HasSubstr("at least 0")));
  EXPECT_THAT(SplitByCounts(10, Counts{}), Refused(HasSubstr("0 stages")));
}

TEST(SplitByCostTest, EveryIntegerCaseIsAsGoodAsBruteForce) {
  // All cost vectors of up to 6 layers with costs 0 to 3.
  for (size_t layers = 0; layers <= 6; ++layers) {
    for (int64_t code = 0; code < (int64_t{1} << (2 * layers)); ++code) {
      std::vector<int64_t> costs(layers);
      for (size_t i = 0; i < layers; ++i) costs[i] = code >> (2 * i) & 3;
      for (int64_t stages = 1; stages <= 7; ++stages) {
        const Ranges ranges = MustSplit(costs, stages);
        ASSERT_EQ(MaxLoad(costs, ranges), BruteForce(costs, 0, stages))
            << ::testing::PrintToString(costs) << " over " << stages;
      }
    }
  }
}

TEST(SplitByCostTest, RandomCasesAreAsGoodAsBruteForce) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const size_t layers = 1 + random() % 12;
    const auto stages = static_cast<int64_t>(1 + random() % 5);
    std::vector<int64_t> costs(layers);
    std::vector<double> reals(layers);
    const int shift = static_cast<int>(random() % 59);
    for (size_t i = 0; i < layers; ++i) {
      costs[i] = static_cast<int64_t>(random() >> 5 >> shift);
      reals[i] = random() % 5 == 0
                     ? 0
                     : std::ldexp(static_cast<double>(random()),
                                  -static_cast<int>(random() % 80));
    }
    ASSERT_EQ(MaxLoad(costs, MustSplit(costs, stages)),
              BruteForce(costs, 0, stages));
    const double best = BruteForce(reals, 0, stages);
    ASSERT_NEAR(MaxLoad(reals, MustSplit(reals, stages)), best, best * 1e-14);
  }
}

TEST(SplitByCostTest, EqualCostsGiveTheEvenSplit) {
  for (int64_t layers = 1; layers <= 24; ++layers) {
    for (int64_t stages = 1; stages <= 26; ++stages) {
      const auto even = SplitEvenly(layers, stages, EmptyStages::kAllowed);
      EXPECT_EQ(MustSplit(std::vector<int64_t>(layers, 3), stages), *even);
      EXPECT_EQ(MustSplit(std::vector<double>(layers, 0.25), stages), *even);
    }
  }
}

TEST(SplitByCostTest, ZeroCostsStillFillEveryStage) {
  ExpectPartition(MustSplit(std::vector<int64_t>(5, 0), 5), 5, 5);
  ExpectPartition(MustSplit(std::vector<double>(9, 0.0), 4), 9, 4);
  EXPECT_THAT(MustSplit(std::vector<int64_t>{0, 0, 7, 0, 0}, 5),
              ElementsAre(LayerRange{0, 1}, LayerRange{1, 2}, LayerRange{2, 3},
                          LayerRange{3, 4}, LayerRange{4, 5}));
}

TEST(SplitByCostTest, KeepsStagesBelowTheGreatestNearAnEqualShare) {
  // One heavy layer sets the optimum; the others need not pile up to it.
  EXPECT_THAT(MustSplit(std::vector<int64_t>{9, 1, 1, 1, 1, 1, 1}, 4),
              ElementsAre(LayerRange{0, 1}, LayerRange{1, 3}, LayerRange{3, 5},
                          LayerRange{5, 7}));
}

TEST(SplitByCostTest, NoLayersMayBeSplitWhereEmptyStagesAreAllowed) {
  EXPECT_THAT(MustSplit(std::vector<int64_t>{}, 2),
              ElementsAre(LayerRange{0, 0}, LayerRange{0, 0}));
}

TEST(SplitByCostTest, Refuses) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  const double biggest = std::numeric_limits<double>::max();
  using Integers = std::vector<int64_t>;
  using Reals = std::vector<double>;
  EXPECT_THAT(SplitByCost(Integers{1, -2}, 1),
              Refused(HasSubstr("layer 1 costs -2")));
  EXPECT_THAT(SplitByCost(Integers{huge, 1}, 1),
              Refused(HasSubstr("up to layer 1")));
  EXPECT_THAT(SplitByCost(Integers{1, 2}, 3), Refused(HasSubstr("2 layers")));
  EXPECT_THAT(SplitByCost(Reals{-0.5}, 1),
              Refused(HasSubstr("layer 0 costs -0.5")));
  EXPECT_THAT(SplitByCost(Reals{infinity}, 1), Refused(HasSubstr("inf")));
  EXPECT_THAT(SplitByCost(Reals{std::nan("")}, 1), Refused(HasSubstr("nan")));
  EXPECT_THAT(SplitByCost(Reals{biggest, biggest}, 1),
              Refused(HasSubstr("up to layer 1")));
  EXPECT_THAT(SplitByCost(Reals{1}, 0), Refused(HasSubstr("0 stages")));
}

TEST(SplitByCostTest, LargestSumsDoNotOverflow) {
  const int64_t half = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THAT(MustSplit(std::vector<int64_t>{half, half}, 2),
              ElementsAre(LayerRange{0, 1}, LayerRange{1, 2}));
  const double most = std::numeric_limits<double>::max() / 2;
  EXPECT_THAT(MustSplit(std::vector<double>{most, most}, 2),
              ElementsAre(LayerRange{0, 1}, LayerRange{1, 2}));
}

TEST(SplitByCostTest, NegativeZeroIsZero) {
  ExpectPartition(MustSplit(std::vector<double>{-0.0, -0.0}, 2), 2, 2);
  ExpectPartition(MustSplit(std::vector<double>{-0.0, 1.0}, 1), 2, 1);
}

TEST(SplitByCostTest, AHundredThousandLayersAreAlmostPerfectlyBalanced) {
  std::mt19937_64 random(3);
  std::vector<int64_t> costs(100'000);
  for (int64_t& cost : costs) cost = static_cast<int64_t>(random() % 1000);
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  for (const int64_t stages : {1, 7, 1000, 50'000, 100'000}) {
    const int64_t most = MaxLoad(costs, MustSplit(costs, stages));
    EXPECT_GE(most, total / stages);
    EXPECT_LE(most, total / stages + 1000);
  }
}

}  // namespace
}  // namespace tessera::topology
