#include "tools/launch/rank_processes.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::tools {
namespace {

using Clock = std::chrono::steady_clock;
using topology::Rank;

constexpr std::chrono::seconds kKillTime{10};
// P_PIDFD, which older C libraries do not name.
constexpr idtype_t kPidfd = static_cast<idtype_t>(3);

// How a process has ended. Its pid stays taken until it is waited for, so that
// its process group can still be signalled and is nobody else's.
bool PeekEnd(const Process& process, siginfo_t& info) {
  info = {};
  return waitid(kPidfd, static_cast<id_t>(process.pidfd.get()), &info,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

// True where the process had ended (or is no child at all).
bool TryReap(pid_t pid) {
  pid_t reaped = -1;
  do {
    reaped = waitpid(pid, nullptr, WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  return reaped != 0;
}

}  // namespace

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
    // A zombie is still there to be killed, so this cannot hit a stranger.
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
  // Twice without anybody: the last to die may have left children to us.
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
