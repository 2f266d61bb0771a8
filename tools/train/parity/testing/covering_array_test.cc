#include "tools/train/parity/testing/covering_array.h"

#include <cstddef>
#include <functional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Pairs = std::set<std::tuple<size_t, size_t, int, int>>;

void AddPairs(const CoveringRow& row, Pairs& pairs) {
  for (size_t f = 0; f < row.size(); ++f) {
    for (size_t g = f + 1; g < row.size(); ++g) {
      pairs.insert({f, g, row[f], row[g]});
    }
  }
}

// By enumerating all rows.
Pairs AllowedPairs(const CoveringProblem& problem) {
  Pairs pairs;
  CoveringRow row(problem.levels.size(), 0);
  for (size_t f = 0; f < row.size();) {
    if (problem.allowed(row)) AddPairs(row, pairs);
    for (f = 0; f < row.size() && ++row[f] == problem.levels[f]; ++f) {
      row[f] = 0;
    }
  }
  return pairs;
}

void ExpectCovers(const CoveringProblem& problem,
                  const std::vector<CoveringRow>& rows) {
  Pairs covered;
  for (const CoveringRow& row : rows) {
    ASSERT_THAT(row, SizeIs(problem.levels.size()));
    for (size_t f = 0; f < row.size(); ++f) {
      EXPECT_GE(row[f], 0);
      EXPECT_LT(row[f], problem.levels[f]);
    }
    EXPECT_TRUE(problem.allowed(row)) << ::testing::PrintToString(row);
    AddPairs(row, covered);
  }
  EXPECT_EQ(covered, AllowedPairs(problem));
}

TEST(CoveringArrayTest, CoversEveryPair) {
  for (const std::vector<int>& levels : std::vector<std::vector<int>>{
           {2, 2}, {1, 3}, {2, 2, 2}, {4, 3, 2, 1}, {5, 4, 4, 2, 2, 3}}) {
    const CoveringProblem problem = {.levels = levels};
    ExpectCovers(problem, CoveringArray(problem));
  }
}

TEST(CoveringArrayTest, HasFarFewerRowsThanProduct) {
  // 2^20 rows; five rows cannot cover twenty factors.
  const CoveringProblem switches = {.levels = std::vector<int>(20, 2)};
  EXPECT_LE(CoveringArray(switches).size(), 12u);
  // At least 13 * 4 rows, for the pairs of the two largest factors.
  const CoveringProblem mixed = {.levels = {13, 4, 4, 3, 3, 2, 2, 2, 2, 2}};
  EXPECT_LE(CoveringArray(mixed).size(), 60u);
}

TEST(CoveringArrayTest, CoversExactlyAllowedPairs) {
  // Three factors with values 0, 1, 2, 3 and a sum of at most 3; the last two
  // are equal if the first is 0.
  const CoveringProblem problem = {
      .levels = {4, 4, 4, 2, 2}, .allowed = [](const CoveringRow& row) {
        int sum = 0;
        for (size_t f = 0; f < 3; ++f) sum += row[f] == kNotChosen ? 0 : row[f];
        const bool both = row[3] != kNotChosen && row[4] != kNotChosen;
        return sum <= 3 && (row[0] != 0 || !both || row[3] == row[4]);
      }};
  ExpectCovers(problem, CoveringArray(problem));
}

// The predicate rejects partial rows only if it must.
TEST(CoveringArrayTest, CompletesRowsWithLatePredicate) {
  const CoveringProblem problem = {.levels = {3, 3, 3, 3},
                                   .allowed = [](const CoveringRow& row) {
                                     int sum = 0;
                                     for (const int value : row) {
                                       if (value == kNotChosen) return true;
                                       sum += value;
                                     }
                                     return sum == 4;
                                   }};
  ExpectCovers(problem, CoveringArray(problem));
}

TEST(CoveringArrayTest, CoversRandomProblems) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 60; ++i) {
    CoveringProblem problem;
    for (size_t f = 0; f < 2 + random() % 4; ++f) {
      problem.levels.push_back(1 + static_cast<int>(random() % 4));
    }
    Pairs forbidden;
    for (size_t f = 0; f < problem.levels.size(); ++f) {
      for (size_t g = f + 1; g < problem.levels.size(); ++g) {
        for (int v = 0; v < problem.levels[f]; ++v) {
          for (int w = 0; w < problem.levels[g]; ++w) {
            if (random() % 4 == 0) forbidden.insert({f, g, v, w});
          }
        }
      }
    }
    problem.allowed = [forbidden](const CoveringRow& row) {
      Pairs pairs;
      AddPairs(row, pairs);
      for (const auto& pair : pairs) {
        if (forbidden.count(pair) > 0) return false;
      }
      return true;
    };
    ExpectCovers(problem, CoveringArray(problem));
  }
}

TEST(CoveringArrayTest, OneValueEachIsOneRow) {
  EXPECT_THAT(CoveringArray({.levels = {1, 1, 1}}),
              ElementsAre(ElementsAre(0, 0, 0)));
}

TEST(CoveringArrayTest, ReturnsNoRowIfNothingIsAllowed) {
  EXPECT_THAT(
      CoveringArray({.levels = {2, 2},
                     .allowed = [](const CoveringRow&) { return false; }}),
      IsEmpty());
}

TEST(CoveringArrayTest, IsDeterministic) {
  const CoveringProblem problem = {.levels = {5, 4, 3, 3, 2}};
  EXPECT_EQ(CoveringArray(problem), CoveringArray(problem));
  // The standard fixes the generator's output.
  EXPECT_EQ(std::mt19937_64(1)(), 2469588189546311528u);
}

}  // namespace
}  // namespace tessera::train
