#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::topology {
namespace {

TEST(SlurmTasksFuzzTest, MutatedListsRoundTripOrFail) {
  TextMutator mutator(
      {"8", "2(x3),1", "1,2,1(x2)", "128(x1024),64"},
      {"(x", ")", ",", "(x2)", "x", "0", "-", "+", " ", std::string(1, '\0')},
      1);
  int valid = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::string text = mutator.Next();
    const auto runs = ParseSlurmTasksPerNode(text);
    if (!runs.ok()) {
      ASSERT_THAT(runs, StatusIs(absl::StatusCode::kInvalidArgument)) << text;
      ASSERT_FALSE(runs.status().message().empty());
      continue;
    }
    ++valid;
    std::string again;
    for (const SlurmTaskRun& run : *runs) {
      absl::StrAppend(&again, again.empty() ? "" : ",", run.tasks, "(x",
                      run.nodes, ")");
    }
    ASSERT_THAT(ParseSlurmTasksPerNode(again), IsOkAndHolds(*runs)) << text;
    ASSERT_GE(SlurmTaskCount(*runs), SlurmNodeCount(*runs));
  }
  EXPECT_GT(valid, 10'000);
}

}  // namespace
}  // namespace tessera::topology
