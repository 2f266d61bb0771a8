// RankProcesses, which owns the processes of this host's ranks and all their
// descendants, and the functions it is made of: Spawn, which starts a program,
// Subreaper and ListChildren.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto ranks, RankProcesses::Create());
//   TESSERA_RETURN_IF_ERROR(ranks->Start(Rank(0), request));
//   pollfd fds[] = {{ranks->fd(), POLLIN, 0}};
//   poll(fds, 1, -1);
//   for (const RankExit& exit : ranks->TakeExits()) { ... }
//   TESSERA_RETURN_IF_ERROR(ranks->KillAll());
#ifndef TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_
#define TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "topology/rank.h"

namespace tessera::tools {

// A program for Spawn. The process leads its own process group, whose number is
// its pid, and by default its own session.
struct SpawnRequest {
  static constexpr int kNoInput = -1;

  std::string path;                      // The file to execute.
  std::vector<std::string> arguments;    // The program's name is the first.
  std::vector<std::string> environment;  // "NAME=value".
  // Descriptors that become 0, 1 and 2 of the program. Each must already have
  // that number or be above 2; `out` may also be 2.
  int in = 0;  // kNoInput selects /dev/null.
  int out = 1;
  int err = 2;
  std::vector<int> inherited;  // Further descriptors above 2 that stay open.
  std::vector<int> cpus = {};  // The CPUs that it may use; empty for all.
  sigset_t mask = {};          // Its blocked signals.
  // If false, the process stays in this process's session. Linux schedules each
  // session as a group (sched(7), autogroup), and sched_yield does not yield to
  // other groups: if there are more ranks than cores, ranks in separate
  // sessions that wait by yielding, as all engines do, wait for whole time
  // slices, milliseconds instead of microseconds.
  bool own_session = true;
  std::optional<rlimit> descriptor_limit = std::nullopt;
};

struct Process {
  pid_t pid = 0;
  UniqueFd pidfd;  // Readable when the process has ended.
};

// Starts a program and returns once it executes. The process receives SIGKILL
// when the calling thread dies, unless it is setuid (prctl(2),
// PR_SET_PDEATHSIG), and inherits descriptors that are not closed on exec.
// FailedPrecondition if the system refuses to execute the program,
// ResourceExhausted if it allows no further process; no child is left after an
// error.
absl::StatusOr<Process> Spawn(const SpawnRequest& request);

// The pids of this process's children, zombies included, ascending. Unavailable
// if /proc cannot be read.
absl::StatusOr<std::vector<pid_t>> ListChildren();

// Parses the parent's pid in the text of a /proc/PID/stat (proc(5)); nullopt if
// the text is malformed. The command's name may contain any character.
std::optional<pid_t> ParentInStat(std::string_view stat);

// While an object exists, descendants of this process whose parents die become
// children of this process instead of init.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int previous_ = 0;
};

// How a rank's process ended.
struct RankExit {
  topology::Rank rank;
  pid_t pid = 0;
  bool by_signal = false;
  int code = 0;  // The exit code, or the signal's number.
  bool dumped_core = false;
  absl::Duration ran = absl::ZeroDuration();

  bool success() const { return !by_signal && code == 0; }
};

// The processes of the ranks. While an object exists, orphaned descendants of a
// rank (background processes, daemons in other sessions) become children of
// this process, so that KillAll finds and kills them. Children that existed
// before are not affected; the rest of the program must not start new ones. Not
// thread-safe.
class RankProcesses {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcesses>> Create();
  // Kills the remaining processes.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts a rank's program. Returns the errors of Spawn, with the rank.
  absl::Status Start(topology::Rank rank, const SpawnRequest& request);

  // Readable when TakeExits has something to return.
  int fd() const { return epoll_.get(); }
  // The ranks that have ended since the last call, in the order in which they
  // ended.
  std::vector<RankExit> TakeExits();
  // The ranks that TakeExits has not returned yet.
  std::vector<topology::Rank> Running() const;
  // The running ranks that a signal or a debugger has stopped.
  std::vector<topology::Rank> Stopped() const;

  // Sends a signal to the process groups of all ranks, including ranks that
  // have ended, because their background processes may still be running.
  void Signal(int signal) const;
  // Sends a signal to the process of one rank, if it is running.
  void SignalRank(topology::Rank rank, int signal) const;

  // Reaps descendants that have ended, to free their entries in the process
  // table.
  void ReapOrphans();

  // Kills every rank and descendant and waits for them. Internal, with the
  // pids, if some did not die within ten seconds.
  absl::Status KillAll();

 private:
  struct Member {
    topology::Rank rank;
    Process process;
    std::chrono::steady_clock::time_point started;
    bool ended = false;   // Returned by TakeExits.
    bool reaped = false;  // Its pid may belong to another process by now.
  };

  RankProcesses() = default;
  bool IsMember(pid_t pid) const;
  std::vector<pid_t> Orphans() const;
  // Kills all once, and returns the processes that are left.
  std::vector<pid_t> KillOnce();

  Subreaper subreaper_;
  UniqueFd epoll_;
  std::set<pid_t> foreign_;
  std::vector<Member> members_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_
