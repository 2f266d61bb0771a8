#include "topology/config/layer_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Sizes = std::vector<int64_t>;
using Costs = std::vector<double>;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

// Every layer once; no stage is empty unless there are too few layers.
void ExpectPartition(const Sizes& sizes, int64_t layers, int64_t stages) {
  ASSERT_EQ(std::ssize(sizes), stages);
  EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 0);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), layers);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 0),
            std::max<int64_t>(stages - layers, 0));
}

double MaxLoad(const Costs& costs, const Sizes& sizes) {
  double most = 0;
  auto begin = costs.begin();
  for (const int64_t size : sizes) {
    most = std::max(most, std::accumulate(begin, begin + size, 0.0));
    begin += size;
  }
  return most;
}

// The least possible greatest load, by trying every contiguous partition of
// costs[begin..] over `stages` stages.
double BruteForce(const Costs& costs, size_t begin, int64_t stages) {
  double load = 0;
  if (stages == 1) {
    for (size_t i = begin; i < costs.size(); ++i) load += costs[i];
    return load;
  }
  double best = BruteForce(costs, begin, 1);
  for (size_t end = begin; end < costs.size(); ++end) {
    best = std::min(best, std::max(load, BruteForce(costs, end, stages - 1)));
    load += costs[end];
  }
  return best;
}

Sizes MustSplit(const Costs& costs, int64_t stages) {
  const auto sizes = SplitByCost(costs, stages);
  EXPECT_THAT(sizes, IsOk());
  ExpectPartition(*sizes, std::ssize(costs), stages);
  return *sizes;
}

TEST(SplitEvenlyTest, FirstStagesAreLargerByAtMostOne) {
  for (int64_t layers = 0; layers <= 40; ++layers) {
    for (int64_t stages = 1; stages <= 45; ++stages) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const Sizes sizes,
                                   SplitEvenly(layers, stages));
      ExpectPartition(sizes, layers, stages);
      EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
      EXPECT_LE(sizes.front() - sizes.back(), 1);
    }
  }
  const int64_t huge = std::numeric_limits<int64_t>::max();
  ExpectPartition(*SplitEvenly(huge, 3), huge, 3);
}

TEST(SplitEvenlyTest, RejectsInvalidSizes) {
  EXPECT_THAT(SplitEvenly(4, 0), Refused(HasSubstr("over 0 stages")));
  EXPECT_THAT(SplitEvenly(4, -1), Refused(HasSubstr("over -1 stages")));
  EXPECT_THAT(SplitEvenly(4, kMaxStages + 1),
              Refused(HasSubstr("from 1 to 1048576")));
  EXPECT_THAT(SplitEvenly(-1, 1), Refused(HasSubstr("have -1 layers")));
}

TEST(SplitByCountsTest, ReturnsTheCounts) {
  EXPECT_THAT(SplitByCounts(10, Sizes{1, 4, 4, 1}),
              IsOkAndHolds(ElementsAre(1, 4, 4, 1)));
  EXPECT_THAT(SplitByCounts(2, Sizes{0, 2, 0}),
              IsOkAndHolds(ElementsAre(0, 2, 0)));
}

TEST(SplitByCountsTest, RejectsCountsThatDoNotAddUp) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(SplitByCounts(10, Sizes{4, 4}),
              Refused(HasSubstr("have 8 of 10"), HasSubstr("add up to 10")));
  EXPECT_THAT(SplitByCounts(10, Sizes{4, 7}),
              Refused(HasSubstr("stage 1 cannot have 7"), HasSubstr("6 of")));
  EXPECT_THAT(SplitByCounts(10, Sizes{huge, huge}),
              Refused(HasSubstr("stage 0")));
  EXPECT_THAT(SplitByCounts(10, Sizes{-1, 11}),
              Refused(HasSubstr("stage 0 cannot have -1")));
  EXPECT_THAT(SplitByCounts(10, Sizes{}), Refused(HasSubstr("0 stages")));
}

TEST(SplitByCostTest, EveryIntegerCaseIsAsGoodAsBruteForce) {
  // All cost vectors of up to 6 layers with costs 0 to 3.
  for (size_t layers = 0; layers <= 6; ++layers) {
    for (int64_t code = 0; code < (int64_t{1} << (2 * layers)); ++code) {
      Costs costs(layers);
      for (size_t i = 0; i < layers; ++i) {
        costs[i] = static_cast<double>(code >> (2 * i) & 3);
      }
      for (int64_t stages = 1; stages <= 7; ++stages) {
        ASSERT_EQ(MaxLoad(costs, MustSplit(costs, stages)),
                  BruteForce(costs, 0, stages))
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
    Costs integers(layers), reals(layers);
    const int shift = static_cast<int>(random() % 49);
    for (size_t i = 0; i < layers; ++i) {
      integers[i] = static_cast<double>(random() >> 15 >> shift);
      reals[i] = random() % 5 == 0
                     ? 0
                     : std::ldexp(static_cast<double>(random()),
                                  -static_cast<int>(random() % 80));
    }
    ASSERT_EQ(MaxLoad(integers, MustSplit(integers, stages)),
              BruteForce(integers, 0, stages));
    const double best = BruteForce(reals, 0, stages);
    ASSERT_NEAR(MaxLoad(reals, MustSplit(reals, stages)), best, best * 1e-14);
  }
}

TEST(SplitByCostTest, EqualCostsGiveTheEvenSplit) {
  for (size_t layers = 1; layers <= 24; ++layers) {
    for (int64_t stages = 1; stages <= 26; ++stages) {
      const auto even = SplitEvenly(static_cast<int64_t>(layers), stages);
      EXPECT_EQ(MustSplit(Costs(layers, 3), stages), *even);
      EXPECT_EQ(MustSplit(Costs(layers, 0.25), stages), *even);
    }
  }
}

TEST(SplitByCostTest, ZeroCostsStillFillEveryStage) {
  MustSplit(Costs(5, 0), 5);
  MustSplit(Costs(9, -0.0), 4);
  MustSplit({-0.0, 1.0}, 1);
  EXPECT_THAT(MustSplit({0, 0, 7, 0, 0}, 5), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(MustSplit({}, 2), ElementsAre(0, 0));
}

TEST(SplitByCostTest, KeepsStagesBelowTheGreatestNearAnEqualShare) {
  // One heavy layer sets the optimum; the others need not pile up to it.
  EXPECT_THAT(MustSplit({9, 1, 1, 1, 1, 1, 1}, 4), ElementsAre(1, 2, 2, 2));
}

TEST(SplitByCostTest, RejectsInvalidCosts) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double biggest = std::numeric_limits<double>::max();
  EXPECT_THAT(SplitByCost(Costs{1, -0.5}, 1),
              Refused(HasSubstr("layer 1 costs -0.5")));
  EXPECT_THAT(SplitByCost(Costs{infinity}, 1), Refused(HasSubstr("inf")));
  EXPECT_THAT(SplitByCost(Costs{std::nan("")}, 1), Refused(HasSubstr("nan")));
  EXPECT_THAT(SplitByCost(Costs{biggest, biggest}, 1),
              Refused(HasSubstr("layer 1 costs"), HasSubstr("up to it inf")));
  EXPECT_THAT(SplitByCost(Costs{1}, 0), Refused(HasSubstr("0 stages")));
  EXPECT_THAT(MustSplit({biggest / 2, biggest / 2}, 2), ElementsAre(1, 1));
}

TEST(SplitByCostTest, AHundredThousandLayersAreAlmostPerfectlyBalanced) {
  std::mt19937_64 random(3);
  Costs costs(100'000);
  for (double& cost : costs) cost = static_cast<double>(random() % 1000);
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (const int64_t stages : {1, 7, 1000, 50'000, 100'000}) {
    const double most = MaxLoad(costs, MustSplit(costs, stages));
    EXPECT_GE(most, total / static_cast<double>(stages));
    EXPECT_LE(most, total / static_cast<double>(stages) + 1000);
  }
}

TEST(LayerSplitTest, RoundTripsThroughText) {
  for (const char* text : {"even", "cost", "3,5", "4", "0,8,0"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const LayerSplit split,
                                 LayerSplit::Parse(text));
    EXPECT_EQ(split.ToString(), text);
  }
  EXPECT_EQ(*LayerSplit::Parse("even"), LayerSplit{});
  for (const char* text :
       {"", "3,", "-1,4", "3;5", "Even", "9999999999999999999"}) {
    EXPECT_THAT(LayerSplit::Parse(text),
                Refused(HasSubstr("is not even, cost, or a list")));
  }
}

TEST(LayerSplitTest, DividesAsChosen) {
  EXPECT_THAT(LayerSplit{}.LayersPerStage(5, 2),
              IsOkAndHolds(ElementsAre(3, 2)));
  EXPECT_THAT(
      (LayerSplit{.by_cost = true}.LayersPerStage(3, 2, Costs{1, 1, 5})),
      IsOkAndHolds(ElementsAre(2, 1)));
  const LayerSplit counts = {.by_cost = true, .counts = {1, 4}};
  EXPECT_THAT(counts.LayersPerStage(5, 2), IsOkAndHolds(ElementsAre(1, 4)));
  EXPECT_THAT(counts.LayersPerStage(5, 3),
              Refused(HasSubstr("3 stages, and 2 numbers")));
  EXPECT_THAT((LayerSplit{.by_cost = true}.LayersPerStage(3, 2, Costs{1})),
              Refused(HasSubstr("costs of 3 layers; 1 are given")));
}

}  // namespace
}  // namespace tessera::topology
