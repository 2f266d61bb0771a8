// RankProcesses: the processes of the ranks of this host, and all that comes
// from them.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto ranks, RankProcesses::Create());
//   TESSERA_RETURN_IF_ERROR(ranks->Start(Rank(0), request));
//   pollfd fds[] = {{ranks->fd(), POLLIN, 0}};
//   poll(fds, 1, -1);
//   for (const RankExit& exit : ranks->TakeExits()) { ... }
//   TESSERA_RETURN_IF_ERROR(ranks->KillAll());
//
// While it lives, whatever a rank's process leaves behind becomes a child of
// this process, and KillAll ends it: background processes, daemons in sessions
// of their own. Children that were there before are left alone; others must not
// be started meanwhile by the rest of the program. Use it on one thread.
#ifndef TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_
#define TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "tools/launch/children.h"
#include "tools/launch/spawn.h"
#include "topology/rank.h"

namespace tessera::tools {

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

class RankProcesses {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcesses>> Create();
  // Kills what is left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts a rank's program. What Spawn refuses, with the rank.
  absl::Status Start(topology::Rank rank, const SpawnRequest& request);

  // Readable when TakeExits has something to tell.
  int fd() const { return epoll_.get(); }
  // Those that have ended since the last call, in the order in which they did.
  std::vector<RankExit> TakeExits();
  // The ranks whose end TakeExits has not told.
  std::vector<topology::Rank> Running() const;

  // Sends a signal to every rank's process group, also of ranks that have
  // ended: their background processes may still run.
  void Signal(int signal) const;

  // Waits for descendants that have ended. Call it now and then, so that they
  // do not fill the process table.
  void ReapOrphans();

  // Kills every rank and descendant and waits for them. Internal with the pids
  // of those that did not die within ten seconds.
  absl::Status KillAll();

 private:
  struct Member {
    topology::Rank rank;
    Process process;
    std::chrono::steady_clock::time_point started;
    bool ended = false;   // TakeExits has told.
    bool reaped = false;  // Its pid may belong to another process by now.
  };

  RankProcesses() = default;
  bool IsMember(pid_t pid) const;
  std::vector<pid_t> Orphans() const;
  // What is left after killing everything once.
  std::vector<pid_t> KillOnce();

  Subreaper subreaper_;
  UniqueFd epoll_;
  std::set<pid_t> foreign_;
  std::vector<Member> members_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_RANK_PROCESSES_H_
