#include "collectives/adaptive/measure_costs.h"

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::HasSubstr;

TEST(HardwareTest, FindsTheProcessorsName) {
  EXPECT_EQ(ModelNameIn("processor : 0\nmodel name\t: A B 9000\nflags: x\n"
                        "model name : C\n"),
            "A B 9000");
}

TEST(HardwareTest, ReturnsPlaceholderWithoutModelName) {
  EXPECT_EQ(ModelNameIn(""), "?");
  EXPECT_EQ(ModelNameIn("model name"), "?");
  EXPECT_EQ(ModelNameIn("model name:   \n"), "?");
}

TEST(HardwareTest, LongNamesAreShortened) {
  EXPECT_EQ(ModelNameIn("model name: " + std::string(5000, 'x')).size(), 120u);
}

TEST(HardwareTest, DescriptionIsStable) {
  const std::string text = DescribeHardware();
  EXPECT_THAT(text, HasSubstr(" cpus; caches "));
  EXPECT_THAT(text, HasSubstr("; host "));
  EXPECT_LE(text.size(), 512u);
  EXPECT_EQ(text, DescribeHardware());
}

using ::testing::Each;

MeasureOptions Short() {
  MeasureOptions options;
  options.budget = absl::Milliseconds(300);
  options.max_bytes = 1 << 20;
  return options;
}

std::vector<CostTable> MeasureOn(int64_t ranks,
                                 const CommunicatorOptions& options = {}) {
  std::mutex mutex;
  std::vector<CostTable> tables;
  EXPECT_THAT(RunRanks(
                  ranks,
                  [&](Communicator& communicator) {
                    auto table = MeasureCosts(communicator, Short());
                    if (!table.ok()) return table.status();
                    const std::lock_guard lock(mutex);
                    tables.push_back(*std::move(table));
                    return absl::OkStatus();
                  },
                  options),
              Each(IsOk()));
  return tables;
}

TEST(MeasureCostsTest, RanksHaveIdenticalTables) {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    const std::vector<CostTable> tables = MeasureOn(ranks);
    ASSERT_EQ(tables.size(), static_cast<size_t>(ranks));
    EXPECT_THAT(tables, Each(tables[0]));
    EXPECT_EQ(tables[0].key.engine, "in_process");
    EXPECT_EQ(tables[0].key.ranks, ranks);
    EXPECT_THAT(CheckCostTable(tables[0]), IsOk());
  }
}

TEST(MeasureCostsTest, MeasuresEverySupportedAlgorithm) {
  const std::vector<CostTable> tables = MeasureOn(4);
  ASSERT_EQ(tables.size(), 4u);
  for (const OpKind kind : kCollectiveKinds) {
    for (const Algorithm algorithm : AlgorithmsFor(kind, false)) {
      EXPECT_TRUE(tables[0].measured.contains({kind, algorithm}))
          << kind << " " << algorithm;
    }
    EXPECT_TRUE(tables[0].measured.contains({kind, Algorithm::kEngine}));
  }
  EXPECT_GT(tables[0].costs.near.alpha, 0);
  EXPECT_GT(tables[0].costs.gamma, 0);
}

TEST(MeasureCostsTest, KeyIncludesPlacement) {
  const std::vector<int64_t> labels = {0, 0, 1, 1};
  TESSERA_ASSERT_OK_AND_ASSIGN(Hierarchy hierarchy,
                               Hierarchy::FromLabels(std::span(&labels, 1)));
  CommunicatorOptions options;
  options.hierarchy = std::make_shared<Hierarchy>(std::move(hierarchy));
  options.reproducible = true;
  const std::vector<CostTable> tables = MeasureOn(4, options);
  ASSERT_EQ(tables.size(), 4u);
  EXPECT_EQ(tables[0].key.ranks_per_host, 2);
  EXPECT_TRUE(tables[0].key.reproducible);
}

TEST(MeasureCostsTest, TextsOfAnySizeAreBroadcast) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
    const std::string text(size, 'x');
    EXPECT_THAT(
        RunRanks(3,
                 [&](Communicator& communicator) -> absl::Status {
                   const bool is_root = communicator.rank() == Rank(0);
                   TESSERA_ASSIGN_OR_RETURN(
                       const std::string got,
                       BroadcastText(communicator, is_root ? text : "other"));
                   return got == text ? absl::OkStatus()
                                      : absl::InternalError("another text");
                 }),
        Each(IsOk()));
  }
}

TEST(TrialTest, SizesAreRoundedToBlocks) {
  EXPECT_EQ(TrialBytes(OpKind::kBarrier, 4096, 3), 0);
  EXPECT_EQ(TrialBytes(OpKind::kAllReduce, 4097, 3), 4096);
  EXPECT_EQ(TrialBytes(OpKind::kAllGather, 64, 3), 60);
  EXPECT_EQ(TrialBytes(OpKind::kAllGather, 4, 100), 400);
}

// A communicator validates its arguments.
TEST(TrialTest, EveryOperationIsValidOnEveryRank) {
  for (const int64_t ranks : {1, 2, 5}) {
    EXPECT_THAT(RunRanks(ranks,
                         [&](Communicator& communicator) -> absl::Status {
                           TrialBuffers buffers(4096, ranks);
                           std::vector<Trial> trials;
                           for (const OpKind kind : kCollectiveKinds) {
                             for (const int64_t bytes : {4, 64, 4096}) {
                               Trial trial;
                               trial.kind = kind;
                               trial.bytes = TrialBytes(kind, bytes, ranks);
                               trial.batch = 2;
                               trials.push_back(trial);
                             }
                           }
                           return RunTrials(communicator, buffers, 3, trials);
                         }),
                Each(IsOk()));
  }
}

}  // namespace

}  // namespace tessera::collectives
