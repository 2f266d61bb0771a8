#include "tools/launch/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::tools {
namespace {

// What the child does before it executes the program, and where it failed.
enum class Step : int {
  kSession,
  kDeathSignal,
  kDescriptors,
  kCpus,
  kLimit,
  kExecute
};

struct ChildFailure {
  Step step;
  int error;
};

// All that the child needs, made before the fork: between fork and exec only
// async-signal-safe calls are allowed, so nothing may be allocated.
struct ChildPlan {
  const SpawnRequest& request;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  cpu_set_t cpus;
  pid_t parent;
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

bool DieWithParent(pid_t parent) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  // It may have died before the call.
  if (getppid() != parent) _exit(127);
  return true;
}

bool PlaceDescriptors(const SpawnRequest& request) {
  const std::pair<int, int> standard[] = {
      {request.in, 0}, {request.out, 1}, {request.err, 2}};
  for (const auto& [from, to] : standard) {
    if (from != to && dup2(from, to) < 0) return false;
  }
  for (const int fd : request.inherited) {
    if (fcntl(fd, F_SETFD, 0) != 0) return false;
  }
  return true;
}

// Returns the step that failed; errno says why.
Step PrepareAndExecute(const ChildPlan& plan) {
  const SpawnRequest& request = plan.request;
  if (request.own_session ? setsid() < 0 : setpgid(0, 0) != 0) {
    return Step::kSession;
  }
  if (!DieWithParent(plan.parent)) return Step::kDeathSignal;
  if (!PlaceDescriptors(request)) return Step::kDescriptors;
  if (!request.cpus.empty() &&
      sched_setaffinity(0, sizeof(plan.cpus), &plan.cpus) != 0) {
    return Step::kCpus;
  }
  if (request.descriptor_limit &&
      setrlimit(RLIMIT_NOFILE, &*request.descriptor_limit) != 0) {
    return Step::kLimit;
  }
  pthread_sigmask(SIG_SETMASK, &request.mask, nullptr);
  execve(request.path.c_str(), plan.arguments.data(), plan.environment.data());
  return Step::kExecute;
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  ChildFailure failure = {};
  failure.step = PrepareAndExecute(plan);
  failure.error = errno;
  [[maybe_unused]] const ssize_t written =
      write(plan.report, &failure, sizeof(failure));
  _exit(127);
}

std::string_view Describe(Step step) {
  switch (step) {
    case Step::kSession:
      return "make a session or process group for";
    case Step::kDeathSignal:
      return "bind to this process's life";
    case Step::kDescriptors:
      return "connect the descriptors of";
    case Step::kCpus:
      return "bind to its CPUs";
    case Step::kLimit:
      return "set the descriptor limit of";
    case Step::kExecute:
      break;
  }
  return "execute";
}

absl::Status StepError(const ChildFailure& failure, const std::string& path) {
  std::string_view hint;
  if (failure.step == Step::kExecute && failure.error == ENOEXEC) {
    hint =
        "; it is neither a program of this machine nor a script that begins "
        "with #!";
  } else if (failure.step == Step::kExecute && failure.error == ENOENT) {
    hint = "; what its #! line or its ELF header names is not there";
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", Describe(failure.step), " \"", path,
                   "\": ", strerror(failure.error), hint));
}

// Waits until the child has executed the program, which closes the pipe.
absl::Status AwaitExecution(int report, const std::string& path) {
  ChildFailure failure = {};
  ssize_t got = -1;
  do {
    got = read(report, &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(failure)) return StepError(failure, path);
  return absl::OkStatus();
}

void Reap(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.valid()) return pidfd;  // Closed on exec, always.
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot watch process ", pid,
                          " (pidfd_open; Linux 5.4 or newer has it)"));
}

}  // namespace

absl::StatusOr<Process> Spawn(const SpawnRequest& request) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  ChildPlan plan = {.request = request,
                    .arguments = Pointers(request.arguments),
                    .environment = Pointers(request.environment),
                    .cpus = {},
                    .parent = getpid(),
                    .report = writer.get()};
  CPU_ZERO(&plan.cpus);
  for (const int cpu : request.cpus) CPU_SET(cpu, &plan.cpus);
  const pid_t pid = fork();
  if (pid == 0) RunChild(plan);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start another process: ", strerror(errno),
                     "; see ulimit -u and the memory that is free"));
  }
  writer.Reset();
  if (absl::Status status = AwaitExecution(reader.get(), request.path);
      !status.ok()) {
    Reap(pid);
    return status;
  }
  absl::StatusOr<UniqueFd> pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) {
    kill(-pid, SIGKILL);
    Reap(pid);
    return pidfd.status();
  }
  return Process{pid, *std::move(pidfd)};
}

}  // namespace tessera::tools
