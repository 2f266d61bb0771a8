#include "tools/launch/start_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/channel/deadline.h"
#include "gtest/gtest.h"
#include "tools/launch/launch_command.h"

namespace tessera::tools {
namespace {

using collectives::bootstrap::Deadline;
using collectives::bootstrap::WaitReady;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

StartRequest Shell(const std::string& script) {
  StartRequest request;
  request.path = "/bin/sh";
  request.arguments = {"sh", "-c", script};
  request.environment = {"NAME=value"};
  return request;
}

// The exit code of a script, which must end within ten seconds.
int ExitOf(const StartRequest& request) {
  const auto process = StartProcess(request);
  EXPECT_THAT(process, IsOk());
  EXPECT_THAT(WaitReady(process->pidfd.get(), POLLIN,
                        Deadline::After(absl::Seconds(10))),
              IsOkAndHolds(true));
  int status = 0;
  waitpid(process->pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StartProcessTest, RunsTheProgramWithItsEnvironment) {
  EXPECT_EQ(
      ExitOf(Shell("[ \"$NAME\" = value ] && [ -z \"$HOME\" ] && exit 7")), 7);
}

TEST(StartProcessTest, ItsInputIsEmpty) {
  EXPECT_EQ(ExitOf(Shell("read line || exit 3")), 3);
}

// What sched_yield needs.
TEST(StartProcessTest, ItStaysInThisSessionInAGroupOfItsOwn) {
  const auto process = StartProcess(Shell("sleep 60"));
  TESSERA_ASSERT_OK(process);
  EXPECT_EQ(getsid(process->pid), getsid(0));
  EXPECT_EQ(getpgid(process->pid), process->pid);
  kill(process->pid, SIGKILL);
  waitpid(process->pid, nullptr, 0);
}

TEST(StartProcessTest, OnlyInheritedDescriptorsStayOpen) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  StartRequest request = Shell("[ -e /proc/self/fd/" + std::to_string(ends[0]) +
                               " ] && exit 4; exit 5");
  EXPECT_EQ(ExitOf(request), 5);
  request.inherited = {ends[0]};
  EXPECT_EQ(ExitOf(request), 4);
  close(ends[0]);
  close(ends[1]);
}

TEST(StartProcessTest, WhatCannotBeExecutedIsAnError) {
  StartRequest request = Shell("");
  request.path = "/no/such/program";
  EXPECT_THAT(StartProcess(request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot execute /no/such/program")));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // Nobody is left.
}

TEST(LaunchCommandTest, RanksDoNotInheritALaunchersVariables) {
  setenv("RANK", "3", 1);
  setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  setenv("OMPI_MCA_btl", "self", 1);
  const std::vector<std::string> environment = CleanEnvironment();
  EXPECT_THAT(environment, Not(Contains(StartsWith("RANK="))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("OMPI_COMM"))));
  EXPECT_THAT(environment, Contains("OMPI_MCA_btl=self"));
}

TEST(LaunchCommandTest, MpirunIsFoundOrItSaysWhatIsMissing) {
  const auto command = MpirunCommand(4, "/bin/true", {"x"});
  if (command.ok()) {
    EXPECT_EQ(command->arguments.back(), "x");
    EXPECT_THAT(command->arguments, Contains("4"));
    EXPECT_THAT(command->environment, Not(Contains(StartsWith("RANK="))));
  } else {
    EXPECT_THAT(command, StatusIs(absl::StatusCode::kNotFound,
                                  HasSubstr("leave mpi out of --engine")));
  }
}

TEST(LaunchCommandTest, KnowsItsOwnPath) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path, OwnPath());
  EXPECT_THAT(path, HasSubstr("process_test"));
}

}  // namespace
}  // namespace tessera::tools
