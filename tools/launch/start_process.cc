#include "tools/launch/start_process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/bootstrap/peer_process.h"

namespace tessera::tools {
namespace {

// Made before the fork: afterwards nothing may be allocated.
struct Plan {
  const StartRequest& request;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t parent;
  int null;
  int report;
};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Returns where it fails, with errno set.
void Execute(const Plan& plan) {
  if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (getppid() != plan.parent) _exit(127);  // It has died meanwhile.
  if (dup2(plan.null, 0) < 0 || dup2(2, 1) < 0) return;
  for (const int fd : plan.request.inherited) {
    if (fcntl(fd, F_SETFD, 0) != 0) return;
  }
  pthread_sigmask(SIG_SETMASK, &plan.request.mask, nullptr);
  execve(plan.request.path.c_str(), plan.arguments.data(),
         plan.environment.data());
}

[[noreturn]] void RunChild(const Plan& plan) {
  Execute(plan);
  const int error = errno;
  [[maybe_unused]] const ssize_t written =
      write(plan.report, &error, sizeof(error));
  _exit(127);
}

// 0 where the child executes the program, which closes the pipe.
int AwaitExecution(int pipe) {
  int error = 0;
  ssize_t got = -1;
  do {
    got = read(pipe, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(error) ? error : 0;
}

}  // namespace

absl::StatusOr<StartedProcess> StartProcess(const StartRequest& request) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Plan plan = {request,
                     Pointers(request.arguments),
                     Pointers(request.environment),
                     getpid(),
                     null.get(),
                     ends[1]};
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a process: ", strerror(errno)));
  }
  if (pid == 0) RunChild(plan);
  writing.Reset();
  const int error = AwaitExecution(reading.get());
  absl::StatusOr<UniqueFd> pidfd = collectives::OpenPidFd(pid);
  if (error == 0 && pidfd.ok()) return StartedProcess{pid, *std::move(pidfd)};
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (error == 0) return pidfd.status();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot execute ", request.path, ": ", strerror(error)));
}

}  // namespace tessera::tools
