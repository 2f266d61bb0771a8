#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/launch/launcher.h"
#include "tools/launch/testing/launch_fixture.h"

namespace tessera::tools {
namespace {

class LauncherSignalTest : public LaunchTest {
 protected:
  // Launches and waits until both ranks report that they are ready.
  pid_t ForkReady(std::vector<std::string> actions, LaunchPlan plan = {}) {
    plan.np = 2;
    const std::string ready = absl::StrCat("ready ", ++launches_);
    actions.insert(actions.end(), {"say:" + ready, "sleep:60000"});
    const pid_t launcher = Fork(PlanFor(std::move(actions), std::move(plan)));
    EXPECT_TRUE(AwaitOut("[0] " + ready));
    EXPECT_TRUE(AwaitOut("[1] " + ready));
    return launcher;
  }

  static char StateOf(pid_t pid) {
    const auto stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"), 4096);
    return stat.ok() ? (*stat)[stat->rfind(')') + 2] : '?';
  }
  bool AwaitRanksStopped(bool stopped) {
    return Await([&] {
      const std::vector<pid_t> ranks = MarkedProcesses();
      return ranks.size() == 2 &&
             std::all_of(ranks.begin(), ranks.end(), [&](pid_t rank) {
               return (StateOf(rank) == 'T') == stopped;
             });
    });
  }

 private:
  int launches_ = 0;
};

TEST_F(LauncherSignalTest, ForwardsTerminatingSignalsAndSetsExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const pid_t launcher = ForkReady({absl::StrCat("trap:", signal)});
    kill(launcher, signal);
    const int status = Wait(launcher);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    EXPECT_TRUE(absl::StrContains(
        Out(), absl::StrCat("got ", signal < 10 ? "0" : "", signal)));
    EXPECT_TRUE(MarkedProcesses().empty());
  }
}

TEST_F(LauncherSignalTest, KillsUnresponsiveRanksAfterGrace) {
  const pid_t launcher =
      ForkReady({"ignore:15"}, {.grace = absl::Milliseconds(200)});
  const absl::Time start = absl::Now();
  kill(launcher, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGTERM);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
}

TEST_F(LauncherSignalTest, SecondInterruptKillsImmediately) {
  const pid_t launcher =
      ForkReady({"ignore:2"}, {.grace = absl::InfiniteDuration()});
  kill(launcher, SIGINT);
  absl::SleepFor(absl::Milliseconds(200));
  int status = 0;
  EXPECT_EQ(waitpid(launcher, &status, WNOHANG), 0);  // It waits for its ranks.
  kill(launcher, SIGINT);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGINT);
}

TEST_F(LauncherSignalTest, ForwardsUserSignals) {
  const pid_t launcher = ForkReady({"trap:10", "trap:15"});
  kill(launcher, SIGUSR1);
  EXPECT_TRUE(AwaitOut("[0] got 10\n"));
  EXPECT_TRUE(AwaitOut("[1] got 10\n"));
  kill(launcher, SIGTERM);
  Wait(launcher);
}

TEST_F(LauncherSignalTest, AsksRanksToSaveAndKillsAtSecondSigterm) {
  for (const int first : {SIGTERM, SIGUSR1}) {
    const pid_t launcher = ForkReady({"trap:10", "ignore:15"},
                                     {.save_grace = absl::InfiniteDuration()});
    kill(launcher, first);
    EXPECT_TRUE(AwaitOut("[0] got 10\n"));
    EXPECT_TRUE(AwaitOut("[1] got 10\n"));
    kill(launcher, SIGTERM);
    if (first == SIGUSR1) {
      absl::SleepFor(absl::Milliseconds(100));
      int status = 0;
      EXPECT_EQ(waitpid(launcher, &status, WNOHANG), 0);
      kill(launcher, SIGTERM);
    }
    EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + first);
  }
}

TEST_F(LauncherSignalTest, StopAndContinueReachTheRanks) {
  const pid_t launcher =
      ForkReady({"trap:18", "trap:15"}, {.timeout = absl::Seconds(60)});
  for (int round = 0; round < 3; ++round) {
    kill(launcher, SIGTSTP);
    EXPECT_TRUE(AwaitRanksStopped(true));
    EXPECT_TRUE(Await([&] { return StateOf(launcher) == 'T'; }));
    kill(launcher, SIGCONT);
    EXPECT_TRUE(AwaitRanksStopped(false));
  }
  EXPECT_TRUE(AwaitOut("[1] got 18\n"));
  kill(launcher, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGTERM);
}

TEST_F(LauncherSignalTest, TimeoutExcludesTimeSpentStopped) {
  // Several sleeps, because a sleep continues while its process is stopped.
  std::vector<std::string> actions(10, "sleep:100");
  actions.insert(actions.begin(), "say:ready");
  const pid_t launcher =
      Fork(PlanFor(actions, {.np = 1, .timeout = absl::Milliseconds(1900)}));
  EXPECT_TRUE(AwaitOut("ready"));
  kill(launcher, SIGTSTP);
  absl::SleepFor(absl::Seconds(2));
  kill(launcher, SIGCONT);
  EXPECT_EQ(Wait(launcher), 0);
}

TEST_F(LauncherSignalTest, EndsStoppedRanks) {
  const pid_t launcher = ForkReady({}, {.grace = absl::InfiniteDuration()});
  for (const pid_t rank : MarkedProcesses()) kill(rank, SIGSTOP);
  EXPECT_TRUE(AwaitRanksStopped(true));
  kill(launcher, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGTERM);
}

TEST_F(LauncherSignalTest, RanksDieWithKilledLauncher) {
  const pid_t launcher = ForkReady({"ignore:15", "ignore:2", "ignore:1"});
  kill(launcher, SIGKILL);
  Wait(launcher);
  EXPECT_TRUE(Await([&] { return MarkedProcesses().empty(); }));
}

TEST_F(LauncherSignalTest, LauncherKilledDuringStartLeavesNoRanks) {
  for (int round = 0; round < 20; ++round) {
    const pid_t launcher = Fork(PlanFor({"sleep:60000"}, {.np = 32}));
    absl::SleepFor(absl::Milliseconds(round));
    kill(launcher, SIGKILL);
    Wait(launcher);
    EXPECT_TRUE(Await([&] { return MarkedProcesses().empty(); }));
  }
}

// The mask after `name` in lines of /proc/PID/status, for signals 1 to 31: the
// C library uses higher ones.
uint64_t MaskIn(std::string_view lines, std::string_view name) {
  const size_t found = lines.find(name);
  uint64_t mask = 0;
  EXPECT_NE(found, std::string_view::npos);
  EXPECT_TRUE(
      absl::SimpleHexAtoi(lines.substr(found + name.size() + 2, 16), &mask));
  return mask & 0x7fffffff;
}

TEST_F(LauncherSignalTest, RanksInheritSignalMaskAndDispositions) {
  signal(SIGHUP, SIG_IGN);  // As under nohup.
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto status = ReadFile("/proc/self/status", 1 << 16);
  Run({"signals"}, {.np = 1, .output = OutputMode::kRaw});
  sigprocmask(SIG_SETMASK, &before, nullptr);
  signal(SIGHUP, SIG_DFL);
  ASSERT_THAT(status, IsOk());
  for (const char* name : {"SigBlk", "SigIgn"}) {
    EXPECT_NE(MaskIn(*status, name), 0u);
    EXPECT_EQ(MaskIn(Out(), name), MaskIn(*status, name)) << name;
  }
}

TEST_F(LauncherSignalTest, IgnoredHangupDoesNotEndRanks) {
  signal(SIGHUP, SIG_IGN);
  const pid_t launcher = ForkReady({});
  signal(SIGHUP, SIG_DFL);
  kill(launcher, SIGHUP);
  absl::SleepFor(absl::Milliseconds(100));
  int status = 0;
  EXPECT_EQ(waitpid(launcher, &status, WNOHANG), 0);
  kill(launcher, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGTERM);
}

TEST_F(LauncherSignalTest, WorksIfCallerIgnoresSigchld) {
  signal(SIGCHLD, SIG_IGN);
  const LaunchOutcome outcome = Run({"1@exit:5", "0@sleep:60000"}, {.np = 2});
  struct sigaction action;
  sigaction(SIGCHLD, nullptr, &action);
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(action.sa_handler, SIG_IGN);
  ASSERT_TRUE(outcome.failure.has_value());
  EXPECT_EQ(outcome.failure->code, 5);
}

TEST_F(LauncherSignalTest, HandlesSignalsWhileReaderBlocks) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    const auto outcome = Launch(PlanFor({"lines:100000:1000", "sleep:60000"},
                                        {.grace = absl::Milliseconds(300)}),
                                {.out_fd = ends[1], .err_fd = ends[1]});
    _exit(outcome.ok() ? outcome->ExitCode() : 99);
  }
  absl::SleepFor(absl::Milliseconds(500));
  kill(launcher, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(Wait(launcher)), 128 + SIGTERM);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tessera::tools
