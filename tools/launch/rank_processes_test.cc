#include "tools/launch/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::Rank;

SpawnRequest Shell(const std::string& script) {
  SpawnRequest request = {.path = "/bin/sh",
                          .arguments = {"sh", "-c", script},
                          .environment = {"PATH=/usr/bin:/bin"},
                          .inherited = {}};
  sigemptyset(&request.mask);
  return request;
}

// A script without input that writes to standard error, in this session.
SpawnRequest SessionShell(const std::string& script) {
  SpawnRequest request = Shell(script);
  request.environment = {"NAME=value"};
  request.in = SpawnRequest::kNoInput;
  request.out = STDERR_FILENO;
  request.own_session = false;
  return request;
}

TEST(ParentInStatTest, ReadsPastAnyName) {
  EXPECT_EQ(ParentInStat("12 (cat) S 7 12 12 0"), 7);
  EXPECT_EQ(ParentInStat("12 (a) S 3 (b) R 9 1"), 9);
  EXPECT_EQ(ParentInStat("12 (a\n) b) Z 4 1"), 4);
  for (const char* text : {"", "12", "12 (cat", "12 (cat)", "12 (cat) S",
                           "12 (cat) S x 1", "12 (cat) S  7"}) {
    EXPECT_EQ(ParentInStat(text), std::nullopt) << text;
  }
}

TEST(ListChildrenTest, HasRunningOnesAndZombies) {
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t runs = fork();
  if (runs == 0) {
    pause();
    _exit(0);
  }
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<pid_t> children,
                               ListChildren());
  EXPECT_THAT(children, ::testing::UnorderedElementsAre(runs, ended));
  kill(runs, SIGKILL);
  waitpid(runs, nullptr, 0);
  waitpid(ended, nullptr, 0);
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
}

// The exit code of a script that must end within ten seconds.
int ExitOf(const SpawnRequest& request) {
  const auto process = Spawn(request);
  EXPECT_THAT(process, IsOk());
  pollfd ended = {process->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 10000), 1);
  int status = 0;
  waitpid(process->pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SpawnTest, RunsTheProgramWithItsEnvironment) {
  EXPECT_EQ(ExitOf(SessionShell(
                "[ \"$NAME\" = value ] && [ -z \"$HOME\" ] && exit 7")),
            7);
}

TEST(SpawnTest, ItsInputIsEmpty) {
  EXPECT_EQ(ExitOf(SessionShell("read line || exit 3")), 3);
}

// sched_yield requires a single session.
TEST(SpawnTest, StaysInSessionWithOwnProcessGroup) {
  const auto process = Spawn(SessionShell("sleep 60"));
  TESSERA_ASSERT_OK(process);
  EXPECT_EQ(getsid(process->pid), getsid(0));
  EXPECT_EQ(getpgid(process->pid), process->pid);
  kill(process->pid, SIGKILL);
  waitpid(process->pid, nullptr, 0);
}

TEST(SpawnTest, OnlyInheritedDescriptorsStayOpen) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  SpawnRequest request = SessionShell(
      "[ -e /proc/self/fd/" + std::to_string(ends[0]) + " ] && exit 4; exit 5");
  EXPECT_EQ(ExitOf(request), 5);
  request.inherited = {ends[0]};
  EXPECT_EQ(ExitOf(request), 4);
  close(ends[0]);
  close(ends[1]);
}

TEST(SpawnTest, FailsIfProgramCannotBeExecuted) {
  SpawnRequest request = SessionShell("");
  request.path = "/no/such/program";
  EXPECT_THAT(Spawn(request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot execute \"/no/such/program\"")));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // No child is left.
}

class RankProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(ranks_, RankProcesses::Create());
  }
  void TearDown() override {
    ranks_.reset();
    EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  }

  RankExit NextExit() {
    while (true) {
      pollfd fd = {ranks_->fd(), POLLIN, 0};
      EXPECT_EQ(poll(&fd, 1, 10000), 1);
      const std::vector<RankExit> exits = ranks_->TakeExits();
      if (!exits.empty()) return exits[0];
      if (fd.revents == 0) return {};
    }
  }

  std::unique_ptr<RankProcesses> ranks_;
};

TEST_F(RankProcessesTest, ReportsEachExitOnce) {
  TESSERA_ASSERT_OK(ranks_->Start(Rank(4), Shell("exit 3")));
  const RankExit exit = NextExit();
  EXPECT_EQ(exit.rank, Rank(4));
  EXPECT_EQ(exit.code, 3);
  EXPECT_FALSE(exit.success());
  EXPECT_GT(exit.pid, 0);
  EXPECT_GT(exit.ran, absl::ZeroDuration());
  EXPECT_THAT(ranks_->TakeExits(), IsEmpty());
  EXPECT_THAT(ranks_->Running(), IsEmpty());
}

TEST_F(RankProcessesTest, ReportsExitsInOrder) {
  // Each waits for its own byte; the bytes are sent in another order.
  const std::vector<int> order = {3, 0, 4, 1, 2};
  std::vector<int> writers;
  std::vector<UniqueFd> fds;
  for (int rank = 0; rank < 5; ++rank) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    fds.emplace_back(ends[0]);
    fds.emplace_back(ends[1]);
    writers.push_back(ends[1]);
    SpawnRequest request = Shell("read line");
    request.in = ends[0];
    TESSERA_ASSERT_OK(ranks_->Start(Rank(rank), request));
  }
  for (const int rank : order) {
    ASSERT_EQ(write(writers[static_cast<size_t>(rank)], "\n", 1), 1);
    usleep(100000);
  }
  std::vector<int64_t> seen;
  for (const RankExit& exit : ranks_->TakeExits()) {
    EXPECT_TRUE(exit.success());
    seen.push_back(exit.rank.value());
  }
  EXPECT_THAT(seen, ElementsAre(3, 0, 4, 1, 2));
}

TEST_F(RankProcessesTest, SignalsReachGroupOfExitedRank) {
  TESSERA_ASSERT_OK(
      ranks_->Start(Rank(0), Shell("(trap 'exit 0' TERM; sleep 60) & exit 0")));
  TESSERA_ASSERT_OK(ranks_->Start(Rank(1), Shell("sleep 60; exit 9")));
  EXPECT_EQ(NextExit().rank, Rank(0));
  EXPECT_THAT(ranks_->Running(), ElementsAre(Rank(1)));
  ranks_->Signal(SIGTERM);
  const RankExit exit = NextExit();
  EXPECT_EQ(exit.rank, Rank(1));
  EXPECT_TRUE(exit.by_signal);
  EXPECT_EQ(exit.code, SIGTERM);
}

TEST_F(RankProcessesTest, ReapsExitedDescendants) {
  TESSERA_ASSERT_OK(ranks_->Start(
      Rank(0), Shell("for i in 1 2 3; do (sleep 0.05 & exit) ; done; sleep "
                     "0.3; exec sleep 60")));
  TESSERA_ASSERT_OK_AND_ASSIGN(std::vector<pid_t> children, ListChildren());
  for (int i = 0; i < 1000 && children.size() < 4; ++i) {
    usleep(5000);
    TESSERA_ASSERT_OK_AND_ASSIGN(children, ListChildren());
  }
  EXPECT_EQ(children.size(), 4u);
  for (int i = 0; i < 1000 && children.size() > 1; ++i) {
    usleep(5000);
    ranks_->ReapOrphans();
    TESSERA_ASSERT_OK_AND_ASSIGN(children, ListChildren());
  }
  EXPECT_EQ(children.size(), 1u);
  EXPECT_THAT(ranks_->Running(), ElementsAre(Rank(0)));
}

TEST_F(RankProcessesTest, KillAllEndsEveryDescendant) {
  for (int rank = 0; rank < 4; ++rank) {
    TESSERA_ASSERT_OK(ranks_->Start(
        Rank(rank),
        Shell("trap '' TERM; (setsid sleep 60 &); sleep 60 & sleep 60")));
  }
  TESSERA_EXPECT_OK(ranks_->KillAll());
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  TESSERA_EXPECT_OK(ranks_->KillAll());
  ranks_->Signal(SIGTERM);  // No process is left to receive it.
}

TEST_F(RankProcessesTest, FailedStartLeavesNoProcess) {
  SpawnRequest request = Shell("");
  request.path = "/etc/passwd";
  EXPECT_THAT(ranks_->Start(Rank(7), request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 7 did not start: cannot execute "
                                 "\"/etc/passwd\": Permission denied")));
  request = Shell("");
  request.out = 9999;
  EXPECT_THAT(ranks_->Start(Rank(7), request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot connect the descriptors of")));
  request = Shell("");
  request.cpus = {1023};
  EXPECT_THAT(ranks_->Start(Rank(7), request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot bind to its CPUs")));
  request = Shell("");
  request.arguments.push_back(std::string(4 << 20, 'x'));
  EXPECT_THAT(ranks_->Start(Rank(7), request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("Argument list too long")));
  EXPECT_THAT(ranks_->Running(), IsEmpty());
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
}

}  // namespace
}  // namespace tessera::tools
