#include "tools/launch/rank_processes.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

namespace tessera::tools {

namespace {

// The steps of the child before it executes the program.
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

// Everything that the child needs, prepared before the fork: between fork and
// exec only async-signal-safe calls are allowed, so nothing may be allocated.
struct ChildPlan {
  const SpawnRequest& request;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int in;
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
  // The parent may have died before the call.
  if (getppid() != parent) _exit(127);
  return true;
}

bool PlaceDescriptors(const ChildPlan& plan) {
  const SpawnRequest& request = plan.request;
  const std::pair<int, int> standard[] = {
      {plan.in, 0}, {request.out, 1}, {request.err, 2}};
  for (const auto& [from, to] : standard) {
    if (from != to && dup2(from, to) < 0) return false;
  }
  for (const int fd : request.inherited) {
    if (fcntl(fd, F_SETFD, 0) != 0) return false;
  }
  return true;
}

// Returns the step that failed and sets errno.
Step PrepareAndExecute(const ChildPlan& plan) {
  const SpawnRequest& request = plan.request;
  if (request.own_session ? setsid() < 0 : setpgid(0, 0) != 0) {
    return Step::kSession;
  }
  if (!DieWithParent(plan.parent)) return Step::kDeathSignal;
  if (!PlaceDescriptors(plan)) return Step::kDescriptors;
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
  constexpr std::array<std::string_view, 6> kActions = {
      "make a session or process group for", "bind to this process's life",
      "connect the descriptors of",          "bind to its CPUs",
      "set the descriptor limit of",         "execute"};
  return kActions[static_cast<size_t>(step)];
}

absl::Status StepError(const ChildFailure& failure, const std::string& path) {
  std::string_view hint;
  if (failure.step == Step::kExecute && failure.error == ENOEXEC) {
    hint =
        "; it is neither a program of this machine nor a script that begins "
        "with #!";
  } else if (failure.step == Step::kExecute && failure.error == ENOENT) {
    hint = "; the interpreter of its #! line or ELF header does not exist";
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", Describe(failure.step), " \"", path,
                   "\": ", strerror(failure.error), hint));
}

// Waits until the child executes the program, which closes the pipe.
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
  if (pidfd.valid()) return pidfd;  // pidfd_open sets close-on-exec.
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot watch process ", pid,
                          " (pidfd_open; Linux 5.4 or newer has it)"));
}

// The text of /proc/PID/stat; "" if the process has just ended.
std::string StatOf(pid_t pid) {
  const UniqueFd file(
      open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t size = file.valid() ? read(file.get(), text, sizeof(text)) : -1;
  return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
}

std::optional<pid_t> ParentOf(pid_t pid) { return ParentInStat(StatOf(pid)); }

// True if a signal or a debugger has stopped the process (proc(5)).
bool IsStopped(pid_t pid) {
  const std::string stat = StatOf(pid);
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) {
    return false;
  }
  const char state = stat[name_end + 2];
  return state == 'T' || state == 't';
}

using Clock = std::chrono::steady_clock;
using topology::Rank;

constexpr std::chrono::seconds kKillTime{10};
// P_PIDFD, which older C libraries do not define.
constexpr idtype_t kPidfd = static_cast<idtype_t>(3);

// Reads how a process has ended without reaping it, so that its pid stays
// reserved and its process group can still be signalled.
bool PeekEnd(const Process& process, siginfo_t& info) {
  info = {};
  return waitid(kPidfd, static_cast<id_t>(process.pidfd.get()), &info,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

// True if the process had ended (or is not a child).
bool TryReap(pid_t pid) {
  pid_t reaped = -1;
  do {
    reaped = waitpid(pid, nullptr, WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  return reaped != 0;
}

}  // namespace

absl::StatusOr<Process> Spawn(const SpawnRequest& request) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  UniqueFd no_input;
  if (request.in == SpawnRequest::kNoInput) {
    no_input.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!no_input.valid()) {
      return absl::ErrnoToStatus(errno, "cannot open /dev/null");
    }
  }
  ChildPlan plan = {.request = request,
                    .arguments = Pointers(request.arguments),
                    .environment = Pointers(request.environment),
                    .in = no_input.valid() ? no_input.get() : request.in,
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

std::optional<pid_t> ParentInStat(std::string_view stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  const std::vector<std::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ');
  pid_t parent = 0;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &parent)) {
    return std::nullopt;
  }
  return parent;
}

absl::StatusOr<std::vector<pid_t>> ListChildren() {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->path().filename().native(), &pid) &&
        ParentOf(pid) == getpid()) {
      children.push_back(pid);
    }
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot list the processes in /proc: ", error.message()));
  }
  std::sort(children.begin(), children.end());
  return children;
}

Subreaper::Subreaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &previous_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, previous_); }

absl::StatusOr<std::unique_ptr<RankProcesses>> RankProcesses::Create() {
  std::unique_ptr<RankProcesses> ranks(new RankProcesses);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<pid_t> children, ListChildren());
  ranks->foreign_.insert(children.begin(), children.end());
  ranks->epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!ranks->epoll_.valid()) {
    return absl::ErrnoToStatus(errno, "cannot make an epoll descriptor");
  }
  return ranks;
}

RankProcesses::~RankProcesses() { KillAll().IgnoreError(); }

absl::Status RankProcesses::Start(Rank rank, const SpawnRequest& request) {
  const Clock::time_point started = Clock::now();
  TESSERA_ASSIGN_OR_RETURN(
      Process process, Spawn(request),
      Annotate(_, absl::StrCat("rank ", rank.value(), " did not start")));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = members_.size();
  const int added =
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.pidfd.get(), &event);
  members_.push_back({rank, std::move(process), started});
  if (added != 0) return absl::ErrnoToStatus(errno, "cannot watch a rank");
  return absl::OkStatus();
}

std::vector<RankExit> RankProcesses::TakeExits() {
  std::vector<RankExit> exits;
  std::array<epoll_event, 64> events;
  // epoll reports descriptors in the order in which they became ready.
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    Member& member = members_[events[static_cast<size_t>(i)].data.u64];
    siginfo_t info;
    if (!PeekEnd(member.process, info)) continue;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, member.process.pidfd.get(), nullptr);
    member.ended = true;
    exits.push_back({.rank = member.rank,
                     .pid = member.process.pid,
                     .by_signal = info.si_code != CLD_EXITED,
                     .code = info.si_status,
                     .dumped_core = info.si_code == CLD_DUMPED,
                     .ran = absl::FromChrono(Clock::now() - member.started)});
  }
  return exits;
}

std::vector<Rank> RankProcesses::Running() const {
  std::vector<Rank> running;
  for (const Member& member : members_) {
    if (!member.ended) running.push_back(member.rank);
  }
  return running;
}

void RankProcesses::Signal(int signal) const {
  for (const Member& member : members_) {
    if (!member.reaped) kill(-member.process.pid, signal);
  }
}

std::vector<Rank> RankProcesses::Stopped() const {
  std::vector<Rank> stopped;
  for (const Member& member : members_) {
    if (!member.ended && IsStopped(member.process.pid)) {
      stopped.push_back(member.rank);
    }
  }
  return stopped;
}

void RankProcesses::SignalRank(Rank rank, int signal) const {
  for (const Member& member : members_) {
    if (member.rank == rank && !member.ended) kill(member.process.pid, signal);
  }
}

bool RankProcesses::IsMember(pid_t pid) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& member) {
                       return member.process.pid == pid && !member.reaped;
                     });
}

std::vector<pid_t> RankProcesses::Orphans() const {
  std::vector<pid_t> orphans;
  const absl::StatusOr<std::vector<pid_t>> children = ListChildren();
  if (!children.ok()) return orphans;
  for (const pid_t pid : *children) {
    if (!foreign_.contains(pid) && !IsMember(pid)) orphans.push_back(pid);
  }
  return orphans;
}

void RankProcesses::ReapOrphans() {
  for (const pid_t pid : Orphans()) TryReap(pid);
}

std::vector<pid_t> RankProcesses::KillOnce() {
  Signal(SIGKILL);
  std::vector<pid_t> left;
  for (const pid_t pid : Orphans()) {
    // The child may be a zombie but is not reaped, so the pid cannot belong to
    // another process.
    kill(pid, SIGKILL);
    if (!TryReap(pid)) left.push_back(pid);
  }
  for (Member& member : members_) {
    if (!member.reaped && TryReap(member.process.pid)) member.reaped = true;
    if (!member.reaped) left.push_back(member.process.pid);
  }
  return left;
}

absl::Status RankProcesses::KillAll() {
  const Clock::time_point deadline = Clock::now() + kKillTime;
  // Requires two empty rounds, because the last process may have left children
  // to this process.
  int quiet_rounds = 0;
  while (quiet_rounds < 2) {
    const std::vector<pid_t> left = KillOnce();
    quiet_rounds = left.empty() ? quiet_rounds + 1 : 0;
    if (left.empty()) continue;
    if (Clock::now() > deadline) {
      return absl::InternalError(
          absl::StrCat("processes that SIGKILL did not end within ten "
                       "seconds: ",
                       absl::StrJoin(left, ", ")));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
