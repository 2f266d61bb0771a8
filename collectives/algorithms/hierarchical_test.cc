// Random sequences of operations, reproducible results, hierarchical
// algorithms.

#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/algorithms/testing/algorithm_case.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

std::vector<AlgorithmCase> RandomCases(std::mt19937_64& random, int64_t ranks,
                                       const Hierarchy& hierarchy, int number) {
  std::vector<AlgorithmCase> cases;
  for (int i = 0; i < number; ++i) {
    const Algorithm algorithm =
        kAllAlgorithms[1 + random() % (kAllAlgorithms.size() - 1)];
    cases.push_back(RandomCase(algorithm, random, ranks, 400));
    if (random() % 2 == 0) cases.back().options.hierarchy = &hierarchy;
  }
  return cases;
}

// Two levels of random groups.
Hierarchy RandomHierarchy(std::mt19937_64& random, int64_t ranks) {
  std::vector<std::vector<int64_t>> labels(2);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    labels[0].push_back(static_cast<int64_t>(random() % 4));
    labels[1].push_back(labels[0].back() / 2);
  }
  return *Hierarchy::FromLabels(labels);
}

class RandomOperationsTest : public ::testing::TestWithParam<ThreadMode> {};

TEST_P(RandomOperationsTest, FiveHundredOperations) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()) + 11);
  for (int round = 0; round < 10; ++round) {
    const int64_t ranks = 2 + static_cast<int64_t>(random() % 8);
    const Hierarchy hierarchy = RandomHierarchy(random, ranks);
    ASSERT_EQ(RunCases(ranks, {.mode = GetParam(), .seed = random()},
                       RandomCases(random, ranks, hierarchy, 50)),
              "")
        << "round " << round << " on " << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomOperationsTest,
                         ::testing::ValuesIn(kAllThreadModes));

// With options.reproducible every algorithm returns the bits of Combine over
// the inputs in rank order, for any size and chunk size.

class ReproducibleTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(ReproducibleTest, MatchesLeftFoldRoundedOnce) {
  const Hierarchy uneven = *Hierarchy::FromLabels(
      std::vector<std::vector<int64_t>>{{0, 1, 1, 0, 1}});
  for (int64_t ranks : {1, 2, 3, 5, 8, 12}) {
    std::vector<AlgorithmCase> cases;
    for (OpKind kind :
         {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
      if (!Supports(GetParam(), kind, false)) continue;
      for (DType dtype :
           {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
        for (ReduceOp op : kAllReduceOps) {
          if (!IsReducible(dtype, op)) continue;
          for (int64_t count : {1, 7, 150}) {
            AlgorithmCase c{
                .algorithm = GetParam(), .kind = kind, .dtype = dtype};
            c.reduction = {op, op == ReduceOp::kScaledSum ? 0.3 : 1.0};
            c.count = count;
            c.root = Rank(ranks - 1);
            c.in_place = count == 7;
            c.options.reproducible = true;
            c.options.chunk_bytes = count == 1 ? kDefaultChunkBytes : 40;
            if (ranks == 5) c.options.hierarchy = &uneven;
            c.uneven = count == 150 && Supports(GetParam(), kind, true);
            c.seed = static_cast<uint64_t>(count);
            cases.push_back(c);
          }
        }
      }
    }
    ASSERT_EQ(RunCases(ranks, {.mode = ThreadMode::kLazy}, cases), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReproducibleTest,
                         ::testing::ValuesIn(kAllAlgorithms),
                         [](const auto& info) {
                           return std::string(AlgorithmName(info.param));
                         });

// Hierarchical algorithms over hierarchies of every shape.

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
      // The larger counts use the algorithm for large messages.
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

// The purpose of hierarchies: little traffic on links between groups.
TEST(HierarchicalTrafficTest, RanksSendOnlyTheirSliceAcrossGroups) {
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
