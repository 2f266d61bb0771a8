#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/launch/launch_fixture.h"
#include "tools/launch/launcher.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using LauncherOutputTest = LaunchTest;

TEST_F(LauncherOutputTest, StandardOutputAndErrorStayApart) {
  Run({"say:result", "complain:progress"}, {.np = 1});
  EXPECT_EQ(Out(), "[0] result\n");
  EXPECT_EQ(Err(), "[0] progress\n");
}

TEST_F(LauncherOutputTest, APartialLineIsShownWhileTheRankRuns) {
  const pid_t launcher =
      Fork(PlanFor({"partial:name? ", "sleep:1500", "say:x"}, {.np = 1}));
  EXPECT_TRUE(AwaitOut("[0] name? "));
  EXPECT_FALSE(absl::StrContains(Out(), "\n"));
  EXPECT_EQ(Wait(launcher), 0);
  EXPECT_EQ(Out(), "[0] name? x\n");
}

TEST_F(LauncherOutputTest, RawOutputHasNotAByteMore) {
  Run({"say:one", "partial:two"}, {.np = 1, .output = OutputMode::kRaw});
  EXPECT_EQ(Out(), "one\ntwo");
}

TEST_F(LauncherOutputTest, ManyRanksLinesArriveWholeAndInOrder) {
  constexpr int kLines = 3000;
  constexpr size_t kLength = 900;
  Run({absl::StrCat("lines:", kLines, ":", kLength)}, {.np = 8});
  std::map<std::string, int> next;
  const std::string filler(kLength, 'x');
  const std::string out = Out();
  std::vector<std::string_view> lines = absl::StrSplit(out, '\n');
  ASSERT_EQ(lines.back(), "");
  lines.pop_back();
  ASSERT_EQ(lines.size(), 8u * kLines);
  for (std::string_view line : lines) {
    int& number = next[std::string(line.substr(0, 4))];
    ASSERT_EQ(line.substr(4),
              absl::StrCat(number, " ", number % 2 == 0 ? "" : filler));
    ++number;
  }
  EXPECT_EQ(next.size(), 8u);
}

TEST_F(LauncherOutputTest, ALineThatIsTooLongIsBrokenWithItsPrefix) {
  Run({"lines:2:100000"}, {.np = 1});
  const std::string text = absl::StrCat("1 ", std::string(100000, 'x'));
  EXPECT_EQ(Out(), absl::StrCat("[0] 0 \n[0] ", text.substr(0, 65536), "\n[0] ",
                                text.substr(65536), "\n"));
}

TEST_F(LauncherOutputTest, LogFilesHoldAllThatARankPrints) {
  const std::string directory = NewDirectory() + "/new/logs";
  LaunchPlan plan = {
      .np = 2, .output = OutputMode::kFiles, .log_directory = directory};
  Run({"say:old, and to be replaced", "say:old"}, plan);
  Run({"say:out", "complain:err", "1@partial:end"}, plan);
  EXPECT_THAT(ReadFile(directory + "/rank0.log", 100),
              IsOkAndHolds("out\nerr\n"));
  EXPECT_THAT(ReadFile(directory + "/rank1.log", 100),
              IsOkAndHolds("out\nerr\nend"));
  EXPECT_EQ(Out() + Err(), "");
}

TEST_F(LauncherOutputTest, ADirectoryThatCannotBeMadeIsAnErrorWithItsName) {
  EXPECT_THAT(TryRun(PlanFor({"say:x"}, {.output = OutputMode::kFiles,
                                         .log_directory = "/proc/logs"})),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot write /proc/logs/rank0.log")));
}

TEST_F(LauncherOutputTest, ASinkThatTakesNoMoreEndsTheRanksAndIsAnError) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      Launch(PlanFor({"say:lost", "sleep:60000"}, {.np = 3}),
             {.out_fd = full.get(), .err_fd = full.get()}),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("standard output could not be written: No space")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
}

TEST_F(LauncherOutputTest, AReaderThatLeavesEndsTheRanks) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  reader.Reset();
  EXPECT_THAT(Launch(PlanFor({"say:lost", "sleep:60000"}, {.np = 2}),
                     {.out_fd = writer.get(), .err_fd = writer.get()}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Broken")));
}

TEST_F(LauncherOutputTest, StandardInputIsRankZeros) {
  const std::string path = NewDirectory() + "/input";
  TESSERA_ASSERT_OK(WriteFile(path, "typed\n"));
  const UniqueFd saved(dup(0));
  const UniqueFd input(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(dup2(input.get(), 0), 0);
  Run({"0@sleep:100", "copy"}, {.np = 2});
  ASSERT_EQ(dup2(saved.get(), 0), 0);
  EXPECT_EQ(Out(), "[0] typed\n");
}

}  // namespace
}  // namespace tessera::tools
