#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::Rank;

int64_t LargestLoad(const std::vector<int64_t>& weights,
                    const std::vector<Rank>& owners, int64_t ranks) {
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  for (size_t i = 0; i < weights.size(); ++i) {
    loads[static_cast<size_t>(owners[i].value())] += weights[i];
  }
  return *std::max_element(loads.begin(), loads.end());
}

// The smallest possible maximum load, by trying every assignment.
int64_t Best(const std::vector<int64_t>& weights, size_t i,
             std::vector<int64_t>& loads) {
  if (i == weights.size()) return *std::max_element(loads.begin(), loads.end());
  int64_t best = std::numeric_limits<int64_t>::max();
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    loads[rank] += weights[i];
    best = std::min(best, Best(weights, i + 1, loads));
    loads[rank] -= weights[i];
    // All empty ranks are equivalent.
    if (loads[rank] == 0) break;
  }
  return best;
}

void ExpectWithinBound(const std::vector<int64_t>& weights, int64_t ranks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Rank> owners,
                               BalanceLargestFirst(weights, ranks));
  ASSERT_EQ(owners.size(), weights.size());
  const int64_t load = LargestLoad(weights, owners, ranks);
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  const int64_t best = Best(weights, 0, loads);
  ASSERT_GE(load, best);
  // load <= (4/3 - 1/(3 ranks)) best, without fractions.
  ASSERT_LE(3 * ranks * load, (4 * ranks - 1) * best)
      << ::testing::PrintToString(weights) << " on " << ranks;
}

TEST(BalanceTest, KnownAssignments) {
  EXPECT_THAT(
      BalanceLargestFirst(std::vector<int64_t>{5, 4, 3, 3, 3}, 2),
      IsOkAndHolds(ElementsAre(Rank(0), Rank(1), Rank(1), Rank(0), Rank(1))));
  EXPECT_THAT(BalanceLargestFirst(std::vector<int64_t>{1, 1, 9}, 5),
              IsOkAndHolds(ElementsAre(Rank(1), Rank(2), Rank(0))));
  EXPECT_THAT(BalanceLargestFirst({}, 3), IsOkAndHolds(IsEmpty()));
}

// Graham's example: 2n+1 weights that reach the bound.
TEST(BalanceTest, TheBoundIsReached) {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    std::vector<int64_t> weights = {ranks};
    for (int64_t weight = ranks; weight < 2 * ranks; ++weight) {
      weights.push_back(weight);
      weights.push_back(weight);
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Rank> owners,
                                 BalanceLargestFirst(weights, ranks));
    // The optimum is 3n: (2n-1)+(n+1), ..., and n+n+n.
    EXPECT_EQ(LargestLoad(weights, owners, ranks), 4 * ranks - 1);
  }
}

// All lists of up to 6 weights of 0 to 4 on 1 to 4 ranks.
TEST(BalanceTest, IsWithinTheBoundOnEverySmallCase) {
  std::vector<std::vector<int64_t>> lists = {{}};
  for (size_t i = 0; i < lists.size(); ++i) {
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      ExpectWithinBound(lists[i], ranks);
    }
    if (lists[i].size() == 6) continue;
    // Descending lists are sufficient.
    const int64_t most = lists[i].empty() ? 4 : lists[i].back();
    for (int64_t weight = 0; weight <= most; ++weight) {
      std::vector<int64_t> longer = lists[i];
      longer.push_back(weight);
      lists.push_back(std::move(longer));
    }
  }
}

TEST(BalanceTest, IsWithinTheBoundOnRandomCases) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> weights(random() % 10);
    for (int64_t& weight : weights)
      weight = static_cast<int64_t>(random() % 99);
    ExpectWithinBound(weights, 1 + static_cast<int64_t>(random() % 4));
  }
}

TEST(BalanceTest, RejectsWrongArguments) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(
      BalanceLargestFirst(std::vector<int64_t>{1}, 0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks is 0")));
  EXPECT_THAT(BalanceLargestFirst(std::vector<int64_t>{1, -2}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("weight 1 is -2")));
  EXPECT_THAT(
      BalanceLargestFirst(std::vector<int64_t>{kMax, 1}, 2),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at number 1")));
}

}  // namespace
}  // namespace tessera::zero3
