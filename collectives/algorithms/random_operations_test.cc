// Sequences of random operations by random algorithms, one after another
// without a barrier between them.

#include "collectives/algorithms/algorithm_case.h"
#include "collectives/algorithms/algorithm_chooser.h"
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
        << hierarchy.Describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomOperationsTest,
                         ::testing::ValuesIn(kAllThreadModes));

}  // namespace
}  // namespace tessera::collectives
