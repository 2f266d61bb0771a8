#include "tools/launch/testing/launch_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "tools/launch/rank_processes.h"

namespace tessera::tools {
namespace {

UniqueFd NewSink(const char* name) {
  UniqueFd file(memfd_create(name, MFD_CLOEXEC));
  EXPECT_TRUE(file.valid());
  return file;
}

}  // namespace

LaunchTest::LaunchTest()
    : program_(std::filesystem::absolute("tools/launch/testing/rank_program")),
      out_(NewSink("out")),
      err_(NewSink("err")) {
  const auto* const info =
      ::testing::UnitTest::GetInstance()->current_test_info();
  marker_ = absl::StrCat("TESSERA_LAUNCH_TEST=", info->name(), ".", getpid());
  // The ranks do not inherit descriptors of the test runner.
  for (int fd = 3; fd < 256; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void LaunchTest::TearDown() {
  EXPECT_TRUE(MarkedProcesses().empty());
  EXPECT_THAT(ListChildren(), IsOkAndHolds(::testing::IsEmpty()));
}

LaunchPlan LaunchTest::PlanFor(std::vector<std::string> actions,
                               LaunchPlan plan) const {
  plan.command = std::move(actions);
  plan.command.insert(plan.command.begin(), program_);
  plan.environment.push_back(marker_);
  return plan;
}

absl::StatusOr<LaunchOutcome> LaunchTest::TryRun(const LaunchPlan& plan) {
  return Launch(plan, {out_.get(), err_.get()});
}

LaunchOutcome LaunchTest::Run(std::vector<std::string> actions,
                              LaunchPlan plan) {
  auto outcome = TryRun(PlanFor(std::move(actions), std::move(plan)));
  EXPECT_THAT(outcome, IsOk());
  return outcome.ok() ? *std::move(outcome) : LaunchOutcome();
}

std::vector<std::string> LaunchTest::OutLines() const {
  return absl::StrSplit(Out(), '\n', absl::SkipEmpty());
}

pid_t LaunchTest::Fork(const LaunchPlan& plan) {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    const auto outcome = TryRun(plan);
    _exit(outcome.ok() ? outcome->ExitCode() : 99);
  }
  setpgid(child, child);
  return child;
}

int LaunchTest::Wait(pid_t child) {
  int status = -1;
  EXPECT_TRUE(Await([&] { return waitpid(child, &status, WNOHANG) == child; }));
  return status;
}

bool LaunchTest::Await(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

bool LaunchTest::AwaitOut(const std::string& text) const {
  return Await([&] { return absl::StrContains(Out(), text); });
}

std::vector<pid_t> LaunchTest::MarkedProcesses() const {
  std::vector<pid_t> marked;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().native(), &pid)) continue;
    const auto environment =
        ReadFile(absl::StrCat("/proc/", pid, "/environ"), 1 << 20);
    if (environment.ok() && absl::StrContains(*environment, marker_)) {
      marked.push_back(pid);
    }
  }
  return marked;
}

std::string LaunchTest::NewDirectory() const {
  std::string path = absl::StrCat(::testing::TempDir(), "/launch_XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::string LaunchTest::Contents(const UniqueFd& file) {
  struct stat status = {};
  EXPECT_EQ(fstat(file.get(), &status), 0);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  EXPECT_EQ(pread(file.get(), text.data(), text.size(), 0),
            static_cast<ssize_t>(text.size()));
  return text;
}

}  // namespace tessera::tools
