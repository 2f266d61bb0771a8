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

Capabilities Everything() { return {0x1ff, true}; }

std::vector<std::string> Names(const std::vector<std::string>& algorithms,
                               const Capabilities& engine, OpKind op) {
  BenchOptions options;
  options.algorithms = algorithms;
  std::vector<std::string> names;
  for (const Variant& variant : VariantsFor(options, engine, op)) {
    names.push_back(variant.Name());
  }
  return names;
}

TEST(VariantTest, AllIsTheEnginesOwnAndEveryAlgorithm) {
  for (const OpKind op : collectives::kCollectiveKinds) {
    EXPECT_EQ(Names({"all"}, Everything(), op).size(),
              1 + AlgorithmsFor(op, false).size());
    EXPECT_EQ(Names({"all"}, Capabilities{0, true}, op).size(),
              AlgorithmsFor(op, false).size());
    EXPECT_THAT(Names({"all"}, Capabilities{0x1ff, false}, op),
                ElementsAre("engine"));
  }
}

TEST(VariantTest, KeepsTheOrderOfNamesWithoutDuplicates) {
  EXPECT_THAT(Names({"ring", "engine", "ring", "adaptive"}, Everything(),
                    OpKind::kAllReduce),
              ElementsAre("ring", "engine", "adaptive"));
}

TEST(VariantTest, OmitsUnsupportedAlgorithms) {
  EXPECT_THAT(Names({"bruck"}, Everything(), OpKind::kAllReduce), IsEmpty());
  EXPECT_THAT(Names({"ring"}, Capabilities{0x1ff, false}, OpKind::kAllReduce),
              IsEmpty());
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

TEST(MedianTest, TakesTheSlowestRankOfEachIteration) {
  EXPECT_THAT(SlowestOf({{1, 5, 2}, {4, 1, 3}}, 3), ElementsAre(4, 5, 3));
  EXPECT_THAT(SlowestOf({}, 2), ElementsAre(0, 0));
  EXPECT_DOUBLE_EQ(Median({4, 5, 3}), 4);
  EXPECT_DOUBLE_EQ(Median({1, 2, 3, 4}), 2.5);
  EXPECT_DOUBLE_EQ(Median({7}), 7);
  EXPECT_DOUBLE_EQ(Median({}), 0);
}

}  // namespace

}  // namespace tessera::tools
