#include "tools/comm_bench/bench_run.h"

#include <string>
#include <vector>

#include "collectives/algorithms/algorithm_chooser.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using collectives::AlgorithmsFor;
using collectives::OpKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Names(const std::vector<std::string>& algorithms,
                               OpKind op, bool is_implemented = true,
                               bool has_transport = true) {
  std::vector<std::string> names;
  for (const Variant& variant :
       VariantsFor(algorithms, op, is_implemented, has_transport)) {
    names.push_back(variant.Name());
  }
  return names;
}

TEST(VariantTest, AllIsTheEnginesOwnAndEveryAlgorithm) {
  for (const OpKind op : collectives::kCollectiveKinds) {
    EXPECT_EQ(Names({"all"}, op).size(), 1 + AlgorithmsFor(op, false).size());
    EXPECT_EQ(Names({"all"}, op, false).size(),
              AlgorithmsFor(op, false).size());
    EXPECT_THAT(Names({"all"}, op, true, false), ElementsAre("engine"));
  }
}

TEST(VariantTest, KeepsTheOrderOfNamesWithoutDuplicates) {
  EXPECT_THAT(
      Names({"ring", "prepared", "ring", "adaptive"}, OpKind::kAllReduce),
      ElementsAre("ring", "prepared", "adaptive"));
}

TEST(VariantTest, OmitsUnsupportedAlgorithms) {
  EXPECT_THAT(Names({"bruck"}, OpKind::kAllReduce), IsEmpty());
  EXPECT_THAT(Names({"ring"}, OpKind::kAllReduce, true, false), IsEmpty());
}

TEST(BatchTest, TakesFortyMicrosecondsOrMore) {
  EXPECT_EQ(BatchFor(1e-3, false), 1);
  EXPECT_EQ(BatchFor(40e-6, false), 1);
  EXPECT_EQ(BatchFor(39e-6, false), 2);
  EXPECT_EQ(BatchFor(4.1e-6, false), 10);
  EXPECT_EQ(BatchFor(1e-9, false), 64);
  EXPECT_EQ(BatchFor(0, false), 64);
  // On a device a batch takes 2 ms.
  EXPECT_EQ(BatchFor(2e-3, true), 1);
  EXPECT_EQ(BatchFor(10e-6, true), 200);
  EXPECT_EQ(BatchFor(1e-7, true), 1024);
}

TEST(SlowestTest, TakesTheSlowestRankOfEachIteration) {
  EXPECT_THAT(SlowestOf({{1, 5, 2}, {4, 1, 3}}, 3), ElementsAre(4, 5, 3));
  EXPECT_THAT(SlowestOf({}, 2), ElementsAre(0, 0));
}

}  // namespace

}  // namespace tessera::tools
