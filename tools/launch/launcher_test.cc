#include "tools/launch/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/launch/launch_fixture.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using topology::Rank;

using LauncherTest = LaunchTest;

TEST_F(LauncherTest, EveryRankHasItsEnvironmentAndASessionOfItsOwn) {
  const LaunchOutcome outcome = Run(
      {"env:RANK", "env:WORLD_SIZE", "env:MASTER_ADDR", "leads"}, {.np = 2});
  EXPECT_EQ(outcome.ExitCode(), 0);
  TESSERA_EXPECT_OK(outcome.ToStatus());
  EXPECT_THAT(outcome.exits, SizeIs(2));
  EXPECT_THAT(OutLines(),
              UnorderedElementsAre("[0] RANK=0", "[0] WORLD_SIZE=2",
                                   "[0] MASTER_ADDR=127.0.0.1", "[0] leads",
                                   "[1] RANK=1", "[1] WORLD_SIZE=2",
                                   "[1] MASTER_ADDR=127.0.0.1", "[1] leads"));
}

TEST_F(LauncherTest, RanksOfOneSessionEndTogetherAllTheSame) {
  const LaunchOutcome outcome =
      Run({"leads", "1@exit:3", "background:60000", "sleep:60000"},
          {.np = 3, .own_sessions = false});
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(1));
  EXPECT_THAT(Out(), HasSubstr("[1] follows\n"));
  EXPECT_THAT(Out(), Not(HasSubstr("leads")));
}

TEST_F(LauncherTest, AllRanksKnowOneSecretAndOnePort) {
  Run({"env:TESSERA_JOB_SECRET", "env:MASTER_PORT"},
      {.np = 3, .output = OutputMode::kRaw});
  const std::vector<std::string> lines = OutLines();
  ASSERT_THAT(lines, SizeIs(6));
  std::map<std::string, int> count;
  for (const std::string& line : lines) ++count[line];
  EXPECT_THAT(count, SizeIs(2));
  EXPECT_EQ(count.begin()->second, 3);
}

TEST_F(LauncherTest, RanksExchangeBytesOverInheritedSockets) {
  for (int64_t np = 1; np <= 9; ++np) {
    const LaunchOutcome outcome = Run({"exchange"}, {.np = np});
    EXPECT_EQ(outcome.ExitCode(), 0) << np << ": " << outcome.ToStatus();
    EXPECT_THAT(Out(), HasSubstr(absl::StrCat("[0] met ", np - 1, "\n")));
  }
}

TEST_F(LauncherTest, ARankHasNoOtherDescriptorsThanItsSockets) {
  Run({"descriptors"}, {.np = 3});
  EXPECT_THAT(OutLines(),
              UnorderedElementsAre("[0] 2 descriptors", "[1] 1 descriptors",
                                   "[2] 1 descriptors"));
}

TEST_F(LauncherTest, ARanksDeathClosesItsSocket) {
  // Were an end left open in the launcher or a third rank, rank 0 would wait.
  const LaunchOutcome outcome =
      Run({"0@await_close", "0@say:closed", "2@await_close"},
          {.np = 3, .timeout = absl::Seconds(10)});
  EXPECT_EQ(outcome.ExitCode(), 0);
  EXPECT_THAT(OutLines(), ElementsAre("[0] closed"));
}

TEST_F(LauncherTest, TheFirstFailureEndsAllAndIsNamed) {
  const LaunchOutcome outcome =
      Run({"1@sleep:50", "1@exit:7", "sleep:60000"}, {.np = 3});
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(1));
  EXPECT_EQ(outcome.failure->code, 7);
  EXPECT_FALSE(outcome.failure->by_signal);
  EXPECT_GE(outcome.failure->ran, absl::Milliseconds(50));
  EXPECT_LT(outcome.failure->ran, absl::Seconds(5));
  ASSERT_THAT(outcome.exits, SizeIs(3));
  for (const RankExit& exit : outcome.exits) {
    if (exit.rank == Rank(1)) continue;
    EXPECT_TRUE(exit.by_signal);
    EXPECT_EQ(exit.code, SIGTERM);
  }
  EXPECT_THAT(
      outcome.ToStatus(),
      StatusIs(absl::StatusCode::kAborted,
               HasSubstr(absl::StrCat("rank 1 (pid ", outcome.failure->pid,
                                      ") exited with code 7 after 0."))));
}

TEST_F(LauncherTest, ARankKilledByASignalIsAFailure) {
  const LaunchOutcome outcome = Run({"2@die:9", "sleep:60000"}, {.np = 3});
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(2));
  EXPECT_THAT(outcome.ToStatus(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("was killed by SIGKILL")));
}

// A process that ends closes its sockets before anybody can see that it has
// ended, so rank 1 fails because of rank 0 and may be gone before it.
TEST_F(LauncherTest, AConsequenceIsNotTakenForADeathBySignal) {
  for (int i = 0; i < 20; ++i) {
    const LaunchOutcome outcome =
        Run({"1@await_close", "1@exit:2", "0@die:9"}, {.np = 2});
    ASSERT_TRUE(outcome.failure.has_value());
    EXPECT_EQ(outcome.failure->rank, Rank(0));
    EXPECT_LE(outcome.also_failed.size(), 1u);
  }
}

TEST_F(LauncherTest, FailuresAtTheSameTimeAreAllNamed) {
  for (int i = 0; i < 20; ++i) {
    const LaunchOutcome outcome = Run(
        {"1@await_close", "1@exit:2", "0@exit:3", "sleep:60000"}, {.np = 3});
    ASSERT_TRUE(outcome.failure.has_value());
    std::vector<Rank> failed = {outcome.failure->rank};
    for (const RankExit& exit : outcome.also_failed) {
      failed.push_back(exit.rank);
    }
    EXPECT_THAT(failed, ::testing::Contains(Rank(0)));
    EXPECT_THAT(failed, ::testing::Not(::testing::Contains(Rank(2))));
  }
}

TEST_F(LauncherTest, RanksThatHearNoSigtermAreKilledAfterTheGrace) {
  const absl::Time start = absl::Now();
  const LaunchOutcome outcome =
      Run({"ignore:15", "0@sleep:100", "0@exit:1", "sleep:60000"},
          {.np = 3, .grace = absl::Milliseconds(200)});
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_EQ(outcome.failure->rank, Rank(0));
  EXPECT_EQ(outcome.exits.back().code, SIGKILL);
}

TEST_F(LauncherTest, RanksThatHearSigtermMayFinishTheirWork) {
  const LaunchOutcome outcome = Run(
      {"1@trap:15", "1@say:ready", "0@sleep:200", "0@exit:1", "sleep:60000"},
      {.np = 2});
  EXPECT_EQ(outcome.ExitCode(), 1);
  EXPECT_THAT(OutLines(), ElementsAre("[1] ready", "[1] got 15"));
}

TEST_F(LauncherTest, TheTimeoutEndsTheRanksAndFails) {
  const LaunchOutcome outcome =
      Run({"1@sleep:60000"}, {.np = 2, .timeout = absl::Milliseconds(300)});
  EXPECT_EQ(outcome.ExitCode(), 1);
  EXPECT_THAT(outcome.timed_out, ElementsAre(Rank(1)));
  EXPECT_THAT(
      outcome.ToStatus(),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               HasSubstr("rank 1 of 2 still ran after --timeout=300ms")));
}

TEST_F(LauncherTest, WhateverRanksLeaveBehindIsEndedAndHoldsNothingUp) {
  const absl::Time start = absl::Now();
  const LaunchOutcome outcome =
      Run({"say:before", "background:60000", "daemon:60000", "partial:after"},
          {.np = 3});
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_EQ(outcome.ExitCode(), 0);
  EXPECT_THAT(OutLines(), SizeIs(6));
  EXPECT_TRUE(MarkedProcesses().empty());
}

TEST_F(LauncherTest, WhatAFailedRankLeavesBehindIsEndedToo) {
  const LaunchOutcome outcome =
      Run({"background:60000", "daemon:60000", "1@exit:1", "sleep:60000"},
          {.np = 2, .grace = absl::Milliseconds(100)});
  EXPECT_EQ(outcome.ExitCode(), 1);
  EXPECT_TRUE(MarkedProcesses().empty());
}

TEST_F(LauncherTest, AProgramThatIsNotThereStartsNothing) {
  LaunchPlan plan = PlanFor({});
  plan.environment.push_back("PATH=/nowhere:/bin");
  plan.command = {"no-such-program"};
  EXPECT_THAT(TryRun(plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"no-such-program\": not found in PATH=")));
  plan.command = {"./missing/program"};
  EXPECT_THAT(TryRun(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("No such file")));
  plan.command = {"/bin"};
  EXPECT_THAT(TryRun(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("Is a directory")));
}

TEST_F(LauncherTest, AFileThatCannotBeExecutedIsAnErrorWithAReason) {
  const std::string directory = NewDirectory();
  LaunchPlan plan = PlanFor({}, {.np = 2});
  plan.command = {directory + "/file"};
  std::ofstream(plan.command[0]) << "neither script nor program";
  if (geteuid() != 0 || access(plan.command[0].c_str(), X_OK) != 0) {
    EXPECT_THAT(TryRun(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("chmod +x")));
  }
  ASSERT_EQ(chmod(plan.command[0].c_str(), 0700), 0);
  EXPECT_THAT(TryRun(plan),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 did not start: cannot execute")));
  std::ofstream(plan.command[0]) << "#!/nowhere/interpreter\n";
  EXPECT_THAT(TryRun(plan), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("its #! line")));
}

TEST_F(LauncherTest, SeveralNodesAreNumberedAndHaveNoInheritedSockets) {
  LaunchPlan plan = {
      .np = 2, .nnodes = 2, .node_rank = 1, .master_addr = "10.1.1.1"};
  EXPECT_THAT(TryRun(PlanFor({"say:x"}, plan)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("set TESSERA_JOB_SECRET")));
  plan.environment = {"TESSERA_JOB_SECRET=shared"};
  Run({"1@exit:1", "2@env:MASTER_PORT", "2@env:TESSERA_INHERITED_SOCKETS",
       "3@env:TESSERA_JOB_SECRET", "3@env:GROUP_RANK"},
      plan);
  EXPECT_THAT(OutLines(),
              UnorderedElementsAre("[2] MASTER_PORT=29500",
                                   "[2] TESSERA_INHERITED_SOCKETS unset",
                                   "[3] TESSERA_JOB_SECRET=shared",
                                   "[3] GROUP_RANK=1"));
}

TEST_F(LauncherTest, BoundRanksHaveCoresOfTheirOwn) {
  Run({"cpus"}, {.np = 1, .bind = Bind::kCore});
  ASSERT_THAT(OutLines(), SizeIs(1));
  EXPECT_THAT(TryRun(PlanFor({"cpus"}, {.np = 700, .bind = Bind::kCore})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--bind=core: 700 ranks need a core each")));
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  const auto two = TryRun(PlanFor({"cpus"}, {.np = 2, .bind = Bind::kCore}));
  if (!two.ok()) return;  // Two hardware threads of one core.
  const std::vector<std::string> lines = OutLines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_NE(lines[1].substr(4), lines[2].substr(4));
}

TEST_F(LauncherTest, ThisProcessIsLeftAsItWas) {
  sigset_t mask_before, mask_after;
  rlimit before = {};
  rlimit after = {};
  getrlimit(RLIMIT_NOFILE, &before);
  before.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  sigprocmask(SIG_SETMASK, nullptr, &mask_before);
  const int next_fd = dup(0);
  close(next_fd);
  Run({"sleep:10"}, {.np = 2});
  const int next_fd_after = dup(0);
  close(next_fd_after);
  EXPECT_EQ(next_fd_after, next_fd);
  sigprocmask(SIG_SETMASK, nullptr, &mask_after);
  getrlimit(RLIMIT_NOFILE, &after);
  int is_subreaper = 1;
  prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
  EXPECT_EQ(after.rlim_cur, 64u);
  EXPECT_EQ(is_subreaper, 0);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&mask_after, signal),
              sigismember(&mask_before, signal));
  }
}

TEST_F(LauncherTest, ChildrenOfOthersAreLeftAlone) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  Run({"background:60000"}, {.np = 2});
  EXPECT_EQ(kill(child, 0), 0);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(LauncherTest, AHardDescriptorLimitThatIsTooLowIsSaid) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit low = {64, 64};
    setrlimit(RLIMIT_NOFILE, &low);
    const auto outcome = TryRun(PlanFor({"say:x"}));
    _exit(absl::IsResourceExhausted(outcome.status()) ? 0 : 1);
  }
  EXPECT_EQ(Wait(child), 0);
}

}  // namespace
}  // namespace tessera::tools
