#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/launch/testing/launch_fixture.h"

namespace tessera::tools {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using topology::Rank;

using LauncherTest = LaunchTest;

TEST_F(LauncherTest, RanksHaveOwnEnvironmentAndSession) {
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

TEST_F(LauncherTest, EndsRanksOfSharedSession) {
  const LaunchOutcome outcome =
      Run({"leads", "1@exit:3", "background:60000", "sleep:60000"},
          {.np = 3, .own_sessions = false});
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(1));
  EXPECT_THAT(Out(), HasSubstr("[1] follows\n"));
  EXPECT_THAT(Out(), Not(HasSubstr("leads")));
}

TEST_F(LauncherTest, RanksShareSecretAndPort) {
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

TEST_F(LauncherTest, RanksInheritOnlyTheirSockets) {
  Run({"descriptors"}, {.np = 3});
  EXPECT_THAT(OutLines(),
              UnorderedElementsAre("[0] 2 descriptors", "[1] 1 descriptors",
                                   "[2] 1 descriptors"));
}

TEST_F(LauncherTest, DeathOfRankClosesItsSocket) {
  // Rank 0 would block if the launcher or another rank kept an end open.
  const LaunchOutcome outcome =
      Run({"0@await_close", "0@say:closed", "2@await_close"},
          {.np = 3, .timeout = absl::Seconds(10)});
  EXPECT_EQ(outcome.ExitCode(), 0);
  EXPECT_THAT(OutLines(), ElementsAre("[0] closed"));
}

TEST_F(LauncherTest, FirstFailureEndsAllAndIsNamed) {
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

TEST_F(LauncherTest, RankKilledBySignalIsFailure) {
  const LaunchOutcome outcome = Run({"2@die:9", "sleep:60000"}, {.np = 3});
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(2));
  EXPECT_THAT(outcome.ToStatus(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("was killed by SIGKILL")));
}

// The sockets of a process close before its exit is visible, so rank 1 may fail
// because of rank 0 and end before it.
TEST_F(LauncherTest, DoesNotBlameConsequenceOfCrash) {
  for (int i = 0; i < 20; ++i) {
    const LaunchOutcome outcome =
        Run({"1@await_close", "1@exit:2", "0@die:9"}, {.np = 2});
    ASSERT_TRUE(outcome.failure.has_value());
    EXPECT_EQ(outcome.failure->rank, Rank(0));
    EXPECT_LE(outcome.also_failed.size(), 1u);
  }
}

// Rank 1 fails each time; the other ranks are started once.
TEST_F(LauncherTest, ReplacesFailedRankUntilItIsRefused) {
  std::vector<RankExit> failed;
  LaunchPlan plan = {.np = 3, .own_sessions = false, .replacements = 3};
  plan.replace = [&](const RankExit& exit) -> std::optional<int64_t> {
    failed.push_back(exit);
    if (failed.size() == 3) return std::nullopt;
    return static_cast<int64_t>(failed.size());
  };
  const LaunchOutcome outcome =
      Run({"env:TESSERA_LATER_SOCKETS", "1@exit:3", "sleep:60000"}, plan);
  EXPECT_EQ(outcome.ExitCode(), 1);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(1));
  ASSERT_THAT(failed, SizeIs(3));
  for (const RankExit& exit : failed) {
    EXPECT_EQ(exit.rank, Rank(1));
    EXPECT_EQ(exit.code, 3);
  }
  // The sockets of the rounds that are left.
  std::map<std::string, std::vector<int64_t>> rounds;
  for (const std::string& line : OutLines()) {
    const std::vector<std::string> parts = absl::StrSplit(line, '=');
    const std::string& value = parts.at(1);
    rounds[parts.at(0)].push_back(
        value.empty() ? 0 : 1 + std::count(value.begin(), value.end(), ';'));
  }
  const auto of = [&](int64_t rank) {
    return rounds[absl::StrCat("[", rank, "] TESSERA_LATER_SOCKETS")];
  };
  EXPECT_THAT(of(0), ElementsAre(3));
  EXPECT_THAT(of(1), ElementsAre(3, 2, 1));
  EXPECT_THAT(of(2), ElementsAre(3));
}

TEST_F(LauncherTest, KillsHungRank) {
  int calls = 0;
  LaunchPlan plan = {.np = 2, .replacements = 1};
  plan.replace = [](const RankExit&) { return std::nullopt; };
  plan.find_hung = [&](const std::vector<Rank>& stopped) {
    EXPECT_THAT(stopped, ElementsAre(Rank(1)));
    return ++calls == 2 ? stopped : std::vector<Rank>();
  };
  const LaunchOutcome outcome =
      Run({absl::StrCat("1@die:", SIGSTOP), "sleep:60000"}, plan);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->rank, Rank(1));
  EXPECT_EQ(outcome.failure->code, SIGKILL);
  EXPECT_GE(calls, 2);
}

// A rank of a lost node has the variables that it had there.
TEST_F(LauncherTest, StartsRanksOfOtherNodes) {
  LaunchPlan plan = {.np = 2,
                     .nnodes = 3,
                     .node_rank = 7,
                     .ranks = {{Rank(5)}},
                     .master_addr = "127.0.0.1",
                     .output = OutputMode::kRaw};
  plan.environment = {"TESSERA_JOB_SECRET=0123456789abcdef"};
  int calls = 0;
  plan.take_over = [&]() -> std::vector<RankStart> {
    if (++calls > 1) return {};
    return {{Rank(2), 1}};
  };
  const LaunchOutcome outcome =
      Run({"env:RANK", "env:GROUP_RANK", "env:LOCAL_RANK", "env:WORLD_SIZE",
           "env:TESSERA_INHERITED_SOCKETS", "5@sleep:2500"},
          plan);
  EXPECT_EQ(outcome.ExitCode(), 0) << outcome.ToStatus();
  EXPECT_THAT(outcome.exits, SizeIs(2));
  EXPECT_THAT(
      OutLines(),
      UnorderedElementsAre("RANK=5", "GROUP_RANK=2", "LOCAL_RANK=1",
                           "WORLD_SIZE=6", "TESSERA_INHERITED_SOCKETS unset",
                           "RANK=2", "GROUP_RANK=1", "LOCAL_RANK=0",
                           "WORLD_SIZE=6", "TESSERA_INHERITED_SOCKETS unset"));
}

// All ranks of this node may die while those of other nodes live.
TEST_F(LauncherTest, ReplacesOnlyRankOfNode) {
  LaunchPlan plan = {.nnodes = 2,
                     .node_rank = 1,
                     .master_addr = "127.0.0.1",
                     .output = OutputMode::kRaw,
                     .replacements = 1};
  plan.environment = {"TESSERA_JOB_SECRET=0123456789abcdef"};
  int failures = 0;
  plan.replace = [&](const RankExit&) -> std::optional<int64_t> {
    if (++failures > 1) return std::nullopt;
    return 1;
  };
  const LaunchOutcome outcome = Run({"env:RANK", "exit:3"}, plan);
  EXPECT_EQ(outcome.ExitCode(), 1);
  EXPECT_EQ(failures, 2);
  EXPECT_THAT(OutLines(), ElementsAre("RANK=1", "RANK=1"));
}

TEST_F(LauncherTest, NamesAllSimultaneousFailures) {
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

TEST_F(LauncherTest, KillsRanksIgnoringSigtermAfterGrace) {
  const absl::Time start = absl::Now();
  const LaunchOutcome outcome =
      Run({"ignore:15", "0@sleep:100", "0@exit:1", "sleep:60000"},
          {.np = 3, .grace = absl::Milliseconds(200)});
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_EQ(outcome.failure->rank, Rank(0));
  EXPECT_EQ(outcome.exits.back().code, SIGKILL);
}

TEST_F(LauncherTest, ExitCode143LetsOthersEnd) {
  const LaunchOutcome outcome =
      Run({"1@sleep:200", "2@sleep:60000", "exit:143"},
          {.np = 3, .grace = absl::Seconds(1)});
  EXPECT_EQ(outcome.ExitCode(), 143);
  EXPECT_THAT(outcome.ToStatus(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("ended by SIGTERM")));
  ASSERT_THAT(outcome.exits, SizeIs(3));
  EXPECT_EQ(outcome.exits[1].code, 143);
  EXPECT_EQ(outcome.exits[2].code, SIGKILL);
}

TEST_F(LauncherTest, RanksMayFinishAfterSigterm) {
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

TEST_F(LauncherTest, EndsLeftoverProcessesOfRanks) {
  const absl::Time start = absl::Now();
  const LaunchOutcome outcome =
      Run({"say:before", "background:60000", "daemon:60000", "partial:after"},
          {.np = 3});
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_EQ(outcome.ExitCode(), 0);
  EXPECT_THAT(OutLines(), SizeIs(6));
  EXPECT_TRUE(MarkedProcesses().empty());
}

TEST_F(LauncherTest, EndsLeftoverProcessesOfFailedRank) {
  const LaunchOutcome outcome =
      Run({"background:60000", "daemon:60000", "1@exit:1", "sleep:60000"},
          {.np = 2, .grace = absl::Milliseconds(100)});
  EXPECT_EQ(outcome.ExitCode(), 1);
  EXPECT_TRUE(MarkedProcesses().empty());
}

TEST_F(LauncherTest, RejectsMissingProgram) {
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

TEST_F(LauncherTest, ExplainsNonExecutableFile) {
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

TEST_F(LauncherTest, NumbersRanksOfSeveralNodes) {
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
  if (!two.ok()) return;  // Both hardware threads are on one core.
  const std::vector<std::string> lines = OutLines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_NE(lines[1].substr(4), lines[2].substr(4));
}

TEST_F(LauncherTest, RestoresStateOfProcess) {
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

TEST_F(LauncherTest, LeavesForeignChildrenAlone) {
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

TEST_F(LauncherTest, ReportsTooLowDescriptorLimit) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit low = {64, 64};
    setrlimit(RLIMIT_NOFILE, &low);
    const auto outcome = TryRun(PlanFor({"say:x"}));
    _exit(absl::IsResourceExhausted(outcome.status()) ? 0 : 1);
  }
  EXPECT_EQ(Wait(child), 0);
}

LaunchPlan ValidPlan() {
  LaunchPlan plan;
  plan.command = {"program"};
  return plan;
}

void ExpectRefused(const LaunchPlan& plan, const std::string& message) {
  EXPECT_THAT(CheckPlan(plan),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(CheckPlanTest, AcceptsValidPlans) {
  TESSERA_EXPECT_OK(CheckPlan(ValidPlan()));
  LaunchPlan plan = ValidPlan();
  plan.np = 4096;
  plan.nnodes = 3;
  plan.node_rank = 2;
  plan.master_addr = "head";
  plan.master_port = 65535;
  plan.grace = absl::ZeroDuration();
  TESSERA_EXPECT_OK(CheckPlan(plan));
}

TEST(CheckPlanTest, ErrorsNameFlagValueAndAllowedRange) {
  LaunchPlan plan = ValidPlan();
  plan.np = 0;
  ExpectRefused(plan, "--np=0: expected a number from 1 to 4096");
  plan.np = 4097;
  ExpectRefused(plan, "--np=4097: ");
  plan = ValidPlan();
  plan.nnodes = 0;
  ExpectRefused(plan, "--nnodes=0: expected a number from 1 to");
  plan.nnodes = 2;
  ExpectRefused(plan, "--master_addr=: with --nnodes above 1, expected");
  plan.node_rank = 2;
  ExpectRefused(plan, "--node_rank=2: expected a number from 0 to 1");
  plan = ValidPlan();
  plan.master_port = 65536;
  ExpectRefused(plan, "--master_port=65536: ");
  plan = ValidPlan();
  plan.timeout = absl::ZeroDuration();
  ExpectRefused(plan, "--timeout=0: expected a time above 0");
  plan = ValidPlan();
  plan.grace = absl::Seconds(-1);
  ExpectRefused(plan, "--grace=-1s: expected a time from 0 up");
  plan = ValidPlan();
  plan.command = {};
  ExpectRefused(plan, "no program; give it and its arguments after --");
}

RankExit Exit(int64_t rank) { return {.rank = Rank(rank), .pid = 100}; }

TEST(LaunchOutcomeTest, SuccessIsOkAndZero) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(1), Exit(0)};
  TESSERA_EXPECT_OK(outcome.ToStatus());
  EXPECT_EQ(outcome.ExitCode(), 0);
}

TEST(LaunchOutcomeTest, FailureNamesRankPidCauseAndTime) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(0), Exit(1)};
  outcome.failure = Exit(1);
  outcome.failure->code = 3;
  outcome.failure->ran = absl::Milliseconds(1230);
  EXPECT_EQ(outcome.ToStatus(),
            absl::AbortedError("rank 1 (pid 100) exited with code 3 after 1.23 "
                               "s, the first to fail; all ranks were ended"));
  outcome.failure->by_signal = true;
  outcome.failure->code = SIGSEGV;
  outcome.failure->dumped_core = true;
  outcome.failure->ran = absl::Seconds(61);
  outcome.exits.pop_back();
  EXPECT_EQ(outcome.ToStatus(),
            absl::AbortedError("rank 1 (pid 100) was killed by SIGSEGV (core "
                               "dumped) after 61 s"));
  EXPECT_EQ(outcome.ExitCode(), 1);
}

TEST(LaunchOutcomeTest, NamesSimultaneousFailures) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(0), Exit(1), Exit(2)};
  outcome.failure = Exit(1);
  outcome.failure->code = 3;
  outcome.also_failed = {Exit(0), Exit(2)};
  EXPECT_THAT(outcome.ToStatus(),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("all ranks were ended; ranks 0, 2 failed at "
                                 "the same time")));
}

TEST(LaunchOutcomeTest, TimeoutNamesFirstRunningRanks) {
  LaunchOutcome outcome;
  outcome.timeout = absl::Seconds(90);
  for (int rank = 0; rank < 10; ++rank) {
    outcome.exits.push_back(Exit(rank));
    outcome.timed_out.push_back(Rank(rank));
  }
  EXPECT_THAT(outcome.ToStatus(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7, ... of 10 "
                                 "still ran after --timeout=1m30s")));
  EXPECT_EQ(outcome.ExitCode(), 1);
}

TEST(LaunchOutcomeTest, ASignalIs128AndItsNumber) {
  LaunchOutcome outcome;
  outcome.signal = SIGINT;
  EXPECT_THAT(outcome.ToStatus(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("ended by SIGINT")));
  EXPECT_EQ(outcome.ExitCode(), 130);
}

using ::testing::IsEmpty;

using LauncherOutputTest = LaunchTest;

TEST_F(LauncherOutputTest, SeparatesStandardOutputAndError) {
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

TEST_F(LauncherOutputTest, RawOutputIsUnchanged) {
  Run({"say:one", "partial:two"}, {.np = 1, .output = OutputMode::kRaw});
  EXPECT_EQ(Out(), "one\ntwo");
}

TEST_F(LauncherOutputTest, LinesOfManyRanksStayWholeAndOrdered) {
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

TEST_F(LauncherOutputTest, SplitsLongLinesWithPrefix) {
  Run({"lines:2:100000"}, {.np = 1});
  const std::string text = absl::StrCat("1 ", std::string(100000, 'x'));
  EXPECT_EQ(Out(), absl::StrCat("[0] 0 \n[0] ", text.substr(0, 65536), "\n[0] ",
                                text.substr(65536), "\n"));
}

TEST_F(LauncherOutputTest, LogFilesHoldAllOutputOfRank) {
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

TEST_F(LauncherOutputTest, NamesUnwritableLogFile) {
  EXPECT_THAT(TryRun(PlanFor({"say:x"}, {.output = OutputMode::kFiles,
                                         .log_directory = "/proc/logs"})),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot write /proc/logs/rank0.log")));
}

TEST_F(LauncherOutputTest, FullSinkEndsRanksWithError) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      Launch(PlanFor({"say:lost", "sleep:60000"}, {.np = 3}),
             {.out_fd = full.get(), .err_fd = full.get()}),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("standard output could not be written: No space")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
}

TEST_F(LauncherOutputTest, ClosedReaderEndsRanks) {
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
