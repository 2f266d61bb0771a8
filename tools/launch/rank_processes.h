// RankProcesses: the processes of the ranks of this host and all their
// descendants; Spawn, which starts one program; ListChildren.
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
#include <cstddef>
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

// A program for Spawn. It leads its own process group, whose number is its pid,
// and by default a session.
struct SpawnRequest {
  static constexpr int kNoInput = -1;

  std::string path;                      // The file to execute.
  std::vector<std::string> arguments;    // The program's name is the first.
  std::vector<std::string> environment;  // "NAME=value".
  // Descriptors that become 0, 1 and 2 of the program: each is that very number
  // or above 2; `out` may be 2 as well.
  int in = 0;  // kNoInput: /dev/null.
  int out = 1;
  int err = 2;
  std::vector<int> inherited;  // Further descriptors above 2 that stay open.
  std::vector<int> cpus = {};  // The CPUs that it may use; empty: all.
  sigset_t mask = {};          // Its blocked signals.
  // False: it stays in this process's session. Linux schedules sessions as
  // groups (sched(7), autogroup), and sched_yield does not yield to another
  // group: ranks that exceed the cores and wait by yielding, as all engines do,
  // then wait for whole time slices, milliseconds instead of microseconds.
  bool own_session = true;
  std::optional<rlimit> descriptor_limit = std::nullopt;
};

struct Process {
  pid_t pid = 0;
  UniqueFd pidfd;  // Readable when the process has ended.
};

// Starts a program; returns once it executes. It gets SIGKILL when the calling
// thread dies (unless it is setuid: prctl(2), PR_SET_PDEATHSIG). Descriptors
// that are not closed on exec stay open in it. FailedPrecondition if the system
// refuses to execute it, ResourceExhausted if it allows no further process; no
// child is left after an error.
absl::StatusOr<Process> Spawn(const SpawnRequest& request);

// The pids of this process's children, zombies included, ascending. Unavailable
// if /proc cannot be read.
absl::StatusOr<std::vector<pid_t>> ListChildren();

// The parent's pid in the text of a /proc/PID/stat (proc(5)), or nothing if the
// text is malformed. The command's name may hold any character.
std::optional<pid_t> ParentInStat(std::string_view stat);

// While it lives, the descendants of this process become its children when
// their parents die, instead of init's.
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

// While this exists, orphaned descendants of a rank become children of this
// process, and KillAll ends them: background processes, daemons in other
// sessions. Earlier children are not affected; the rest of the program must not
// start others meanwhile. Use it on one thread.
class RankProcesses {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcesses>> Create();
  // Kills the remaining processes.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts a rank's program. The errors of Spawn, with the rank.
  absl::Status Start(topology::Rank rank, const SpawnRequest& request);

  // Readable when TakeExits has something to return.
  int fd() const { return epoll_.get(); }
  // The ranks that have ended since the last call, in the order of their ends.
  std::vector<RankExit> TakeExits();
  // The ranks whose end TakeExits has not returned yet.
  std::vector<topology::Rank> Running() const;

  // Sends a signal to every rank's process group, also of ranks that have
  // ended: their background processes may still run.
  void Signal(int signal) const;

  // Reaps descendants that have ended, so that they do not fill the process
  // table.
  void ReapOrphans();

  // Kills every rank and descendant and waits for them. Internal with the pids
  // of those that did not die within ten seconds.
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
  // The processes left after one round of kills.
  std::vector<pid_t> KillOnce();

  Subreaper subreaper_;
  UniqueFd epoll_;
  std::set<pid_t> foreign_;
  std::vector<Member> members_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_
