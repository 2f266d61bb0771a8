// Hierarchical algorithms over hierarchies of every shape.

#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_case.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/hierarchy.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

struct Shape {
  std::string name;
  std::vector<std::vector<int64_t>> labels;  // [level][rank]
};

std::vector<Shape> Shapes() {
  return {
      {"pairs", {{0, 0, 1, 1, 2, 2}}},
      {"interleaved", {{0, 1, 2, 0, 1, 2}}},
      {"uneven", {{0, 0, 0, 1, 1, 2}}},
      {"uneven_scattered", {{0, 1, 0, 2, 0, 1, 2}}},
      {"one_group", {{0, 0, 0, 0, 0}}},
      {"singletons", {{0, 1, 2, 3, 4}}},
      {"one_rank", {{0}}},
      {"two_even_levels", {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}}},
      {"two_even_levels_scattered",
       {{0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 0, 1, 0, 1, 0, 1}}},
      {"even_in_uneven", {{0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1}}},
      {"uneven_in_even", {{0, 0, 0, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}}},
      {"three_levels",
       {{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5},
        {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2},
        {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}}},
  };
}

class HierarchicalTest : public ::testing::TestWithParam<Shape> {};

TEST_P(HierarchicalTest, EveryKindOnEveryShape) {
  const auto ranks = static_cast<int64_t>(GetParam().labels[0].size());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy hierarchy,
                               Hierarchy::FromLabels(GetParam().labels));
  std::vector<AlgorithmCase> cases;
  uint64_t seed = 0;
  for (OpKind kind : kCollectiveKinds) {
    for (const bool uneven : {false, true}) {
      if (!Supports(Algorithm::kHierarchical, kind, uneven)) continue;
      // The larger ones take the way of large messages.
      for (int64_t count : {0, 1, 5, 100, 6001}) {
        for (const bool in_place : {false, true}) {
          AlgorithmCase c{.algorithm = Algorithm::kHierarchical, .kind = kind};
          c.dtype = seed % 2 == 0 ? DType::kF32 : DType::kI64;
          c.reduction.op = kAllReduceOps[seed % 5];
          c.count = count;
          c.uneven = uneven;
          c.in_place = in_place;
          c.root = Rank(static_cast<int64_t>(seed) % ranks);
          c.options = {.hierarchy = &hierarchy, .chunk_bytes = 4096};
          c.seed = ++seed;
          cases.push_back(c);
        }
      }
    }
  }
  for (ThreadMode mode : {ThreadMode::kEager, ThreadMode::kLazy}) {
    ASSERT_EQ(RunCases(ranks, {.mode = mode}, cases), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HierarchicalTest,
                         ::testing::ValuesIn(Shapes()),
                         [](const auto& info) { return info.param.name; });

// The point of it all: links between groups carry little.
TEST(HierarchicalTrafficTest, AcrossGroupsEachRankSendsItsSliceOnly) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy hierarchy,
      Hierarchy::FromLabels(
          std::vector<std::vector<int64_t>>{{0, 0, 0, 0, 1, 1, 1, 1}}));
  AlgorithmCase c{.algorithm = Algorithm::kHierarchical};
  c.count = 8 * 8000;
  c.options.hierarchy = &hierarchy;
  const PreparedCase prepared(c, 8);
  ThreadWorld world(8);
  for (const absl::Status& status : world.Run([&](Transport& transport) {
         Scratch scratch;
         return prepared.Run(world, transport, 1, scratch);
       })) {
    EXPECT_THAT(status, IsOk());
  }
  // Within: 2 * 3/4 S. Across two groups: a ring all-reduce of S/4.
  const int64_t bytes = c.count * 4;
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(world.sent(rank).bytes, 2 * bytes * 3 / 4 + bytes / 4);
  }
}

}  // namespace
}  // namespace tessera::collectives
