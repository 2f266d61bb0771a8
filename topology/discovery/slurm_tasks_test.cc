#include "topology/discovery/slurm_tasks.h"

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

TEST(SlurmTasksTest, ReadsTheFormsOfTheManual) {
  EXPECT_THAT(ParseSlurmTasksPerNode("8"),
              IsOkAndHolds(ElementsAre(SlurmTaskRun{8, 1})));
  EXPECT_THAT(
      ParseSlurmTasksPerNode("2(x3),1"),
      IsOkAndHolds(ElementsAre(SlurmTaskRun{2, 3}, SlurmTaskRun{1, 1})));
  EXPECT_THAT(ParseSlurmTasksPerNode("1,2,1(x2)"),
              IsOkAndHolds(ElementsAre(SlurmTaskRun{1, 1}, SlurmTaskRun{2, 1},
                                       SlurmTaskRun{1, 2})));
}

TEST(SlurmTasksTest, CountsAsTheListWrittenOut) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SlurmTaskRun> runs(1 + random() % 5);
    std::vector<int64_t> nodes;
    int64_t tasks = 0;
    for (SlurmTaskRun& run : runs) {
      run.tasks = 1 + static_cast<int64_t>(random() % 9);
      run.nodes = 1 + static_cast<int64_t>(random() % 4);
      nodes.insert(nodes.end(), static_cast<size_t>(run.nodes), run.tasks);
      tasks += run.tasks * run.nodes;
    }
    EXPECT_THAT(ParseSlurmTasksPerNode(FormatSlurmTasksPerNode(runs)),
                IsOkAndHolds(runs));
    EXPECT_EQ(SlurmNodeCount(runs), static_cast<int64_t>(nodes.size()));
    EXPECT_EQ(SlurmTaskCount(runs), tasks);
    for (size_t node = 0; node < nodes.size(); ++node) {
      EXPECT_EQ(SlurmTasksOfNode(runs, static_cast<int64_t>(node)),
                nodes[node]);
    }
    EXPECT_EQ(SlurmTasksOfNode(runs, static_cast<int64_t>(nodes.size())),
              std::nullopt);
    EXPECT_EQ(SlurmTasksOfNode(runs, -1), std::nullopt);
  }
}

TEST(SlurmTasksTest, RefusesWhatIsNoList) {
  for (const std::string text : {"",
                                 ",",
                                 "2,",
                                 ",2",
                                 "0",
                                 "-1",
                                 "+1",
                                 " 1",
                                 "1 ",
                                 "2(x0)",
                                 "2(x-1)",
                                 "2(3)",
                                 "2(x3",
                                 "2x3)",
                                 "(x3)",
                                 "2(x3)4",
                                 "2()",
                                 "2(x)",
                                 "1.5",
                                 "a",
                                 "2((x3))",
                                 "99999999999999999999",
                                 "2(x99999999999999999999)"}) {
    EXPECT_THAT(
        ParseSlurmTasksPerNode(text),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"" + text + "\""), HasSubstr("2(x3),1"))))
        << text;
  }
}

TEST(SlurmTasksTest, BoundsNodesTasksAndLength) {
  EXPECT_THAT(ParseSlurmTasksPerNode("1(x1048576)"), IsOk());
  EXPECT_THAT(ParseSlurmTasksPerNode("1(x1048576),1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 2^20 nodes")));
  EXPECT_THAT(ParseSlurmTasksPerNode("1048576(x1048576)"), IsOk());
  EXPECT_THAT(ParseSlurmTasksPerNode("1099511627776(x1048576)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 2^40 tasks")));
  EXPECT_THAT(ParseSlurmTasksPerNode(std::string(2 << 20, '1')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("longer than 1 MiB")));
}

}  // namespace
}  // namespace tessera::topology
