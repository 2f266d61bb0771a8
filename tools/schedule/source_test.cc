#include "tools/schedule/source.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using pipeline::Costs;
using pipeline::StageCosts;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteTemporary(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(CostsTest, OneSetOfTimesAppliesToEveryStage) {
  CostOptions options;
  options.times = "18.522,18.086,9.337,0.601";
  options.memory = "201216,-127488,-73728";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Costs costs, MakeCosts(options, 3, 1));
  ASSERT_EQ(costs.stages.size(), 3u);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_EQ(stage.forward, 18.522);
    EXPECT_EQ(stage.backward_input, 18.086);
    EXPECT_EQ(stage.backward_weight, 9.337);
    EXPECT_EQ(stage.communication, 0.601);
    EXPECT_EQ(stage.forward_bytes, 201216);
    EXPECT_EQ(stage.backward_input_bytes, -127488);
    EXPECT_EQ(stage.backward_weight_bytes, -73728);
  }
}

TEST(CostsTest, CommunicationMayBeLeftOut) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const StageCosts costs, ParseTimes(" 1, 2 ,3"));
  EXPECT_EQ(costs.backward_input, 2);
  EXPECT_EQ(costs.communication, 0);
}

TEST(CostsTest, AFileHasALineForEachStage) {
  CostOptions options;
  options.memory = "7,-3,-4";
  options.times =
      WriteTemporary("times.csv",
                     "# F,B,W,comm\n1,2,3,0.5\n\n 4,5,6  # the middle\r\n"
                     "7,8,9,0.25,100,-60,-40\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Costs costs, MakeCosts(options, 3, 1));
  EXPECT_EQ(costs.stages[0].communication, 0.5);
  EXPECT_EQ(costs.stages[0].forward_bytes, 7);
  EXPECT_EQ(costs.stages[1].forward, 4);
  EXPECT_EQ(costs.stages[1].communication, 0);
  EXPECT_EQ(costs.stages[2].backward_weight, 9);
  EXPECT_EQ(costs.stages[2].forward_bytes, 100);
  EXPECT_EQ(costs.stages[2].backward_weight_bytes, -40);
  EXPECT_THAT(MakeCosts(options, 4, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--times="),
                             HasSubstr("times of 3 stages for 4"))));
}

TEST(CostsTest, ARanksTimesAreSharedAmongItsStages) {
  CostOptions options;
  options.times = "3,6,9,1";
  options.memory = "100,-33,-67";
  options.of = CostsOf::kRank;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Costs costs, MakeCosts(options, 6, 3));
  ASSERT_EQ(costs.stages.size(), 6u);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_EQ(stage.forward, 1);
    EXPECT_EQ(stage.backward_input, 2);
    EXPECT_EQ(stage.backward_weight, 3);
    EXPECT_EQ(stage.communication, 1);
    EXPECT_EQ(stage.forward_bytes, 33);
    EXPECT_EQ(stage.forward_bytes + stage.backward_input_bytes +
                  stage.backward_weight_bytes,
              0);
  }
}

TEST(CostsTest, LinksAndTheOptimizerAreInMilliseconds) {
  CostOptions options;
  options.latency = 0.5;
  options.bandwidth = 2;  // GB/s.
  options.activation_bytes = 4000000;
  options.optimizer = 3;
  options.overlap = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Costs costs, MakeCosts(options, 2, 1));
  EXPECT_EQ(costs.links.everywhere.latency, 0.5);
  // 4 MB at 2 GB/s take 2 ms.
  EXPECT_EQ(static_cast<double>(costs.stages[1].gradient_bytes) /
                costs.links.everywhere.bandwidth,
            2);
  EXPECT_EQ(costs.stages[0].activation_bytes, 4000000);
  EXPECT_EQ(costs.stages[0].optimizer, 3);
  EXPECT_FALSE(costs.overlap_communication);
}

TEST(CostsTest, ErrorsNameFlagValueAndAllowedRange) {
  using Change = std::function<void(CostOptions&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& o) { o.times = "1,2"; },
       "--times=1,2: 2 times; expected three or four times in milliseconds"},
      {[](auto& o) { o.times = "1,2,3,4,5"; }, "--times=1,2,3,4,5: 5 times"},
      {[](auto& o) { o.times = "1,-2,3"; },
       "\"-2\" is not a time from 0 to 1e9"},
      {[](auto& o) { o.times = "1,,3"; }, "\"\" is not a time"},
      {[](auto& o) { o.times = "1,2e9,3"; }, "\"2e9\" is not a time"},
      {[](auto& o) { o.memory = "1,2"; }, "--memory=1,2: 2 sizes; expected"},
      {[](auto& o) { o.memory = "1,x,3"; }, "\"x\" is not a whole number"},
      {[](auto& o) { o.memory = "1,2.5,3"; }, "\"2.5\" is not a whole number"},
      {[](auto& o) { o.memory = "9999999999999999999,2,3"; }, "up to 2^50"},
      {[](auto& o) { o.latency = -1; }, "--latency=-1: expected"},
      {[](auto& o) { o.bandwidth = -1; }, "--bandwidth=-1: expected GB/s"},
      {[](auto& o) { o.optimizer = -1; }, "--optimizer=-1: expected"},
  };
  for (const auto& [change, message] : cases) {
    CostOptions options;
    change(options);
    EXPECT_THAT(
        MakeCosts(options, 2, 1),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  CostOptions missing;
  missing.times = "no_such_file.txt";
  EXPECT_THAT(MakeCosts(missing, 2, 1),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--times=no_such_file.txt")));
}

TEST(CostsTest, NamesInvalidLineOfFile) {
  EXPECT_THAT(ParseTimesFile("1,2,3\n1,2\n", "1,0,-1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 2: 2 fields")));
  EXPECT_THAT(ParseTimesFile("1,2,3,4,5,6,x", "1,0,-1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 1: \"x\" is not a whole number")));
  EXPECT_THAT(ParseTimesFile("# nothing\n", "1,0,-1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no line of times")));
}

TEST(CostsFuzzTest, DamagedFilesGiveCostsOrAReason) {
  TextMutator mutator({"1,2,3,0.5\n4,5,6\n", "# c\n7,8,9,0.25,100,-60,-40\n"},
                      {",", "\n", "nan", "inf", "-", "1e308", "#"}, 7);
  int valid = 0;
  for (int round = 0; round < 30000; ++round) {
    const auto stages = ParseTimesFile(mutator.Next(), "1,0,-1");
    if (!stages.ok()) {
      EXPECT_THAT(stages, StatusIs(absl::StatusCode::kInvalidArgument));
      EXPECT_FALSE(stages.status().message().empty());
      continue;
    }
    ++valid;
    Costs costs;
    costs.stages = *stages;
    EXPECT_THAT(CheckCosts(costs, static_cast<int64_t>(stages->size())),
                IsOk());
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace

}  // namespace tessera::tools
