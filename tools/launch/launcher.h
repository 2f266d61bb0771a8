// Launch, which starts the ranks of one node and returns when all of them have
// ended; its input LaunchPlan and its result LaunchOutcome.
//
//   LaunchPlan plan;
//   plan.command = {"./train", "--steps=100"};
//   plan.environment = {"PATH=/usr/bin:/bin"};
//   plan.np = 4;
//   TESSERA_ASSIGN_OR_RETURN(LaunchOutcome outcome, Launch(plan, {}));
//   return outcome.ExitCode();
//
// Each rank leads its own session (unless the plan says otherwise), has the
// environment of RankEnvironment and, on a single node, a socket to rank 0.
// Rank 0 of node 0 reads this process's standard input, every other rank
// /dev/null. When a rank fails, at the timeout, and on SIGINT, SIGTERM, SIGHUP
// or SIGQUIT, all process groups receive SIGTERM (or that signal), followed by
// SIGKILL after the grace period or at a second SIGINT. SIGUSR1 and SIGUSR2 are
// forwarded; SIGTSTP stops the ranks and this process until SIGCONT. A rank
// that exits with 143 was asked to end, as if this process had received
// SIGTERM: the others have the grace period to end as well. If the plan allows
// it, a rank that fails is replaced instead.
//
// When Launch returns, no rank or descendant is still running, and all output
// has been written. If this process is killed, the ranks are killed, too.
#ifndef TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
#define TESSERA_TOOLS_LAUNCH_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/launch/rank_processes.h"
#include "topology/rank.h"

namespace tessera::tools {

enum class OutputMode {
  kPrefix,  // Whole lines, each after "[3] ".
  kRaw,     // Whole lines, unchanged.
  kFiles,   // Both streams of rank 3 go to DIRECTORY/rank3.log.
};

enum class Bind {
  kNone,  // A rank has the CPUs of the launcher.
  kCore,  // Each rank has its own core.
};

// A rank to start, and the round of the rendezvous that it joins.
struct RankStart {
  topology::Rank rank;
  int64_t round = 0;

  friend bool operator==(const RankStart&, const RankStart&) = default;
};

// Describes a launch: the program, its ranks, and how to run them.
struct LaunchPlan {
  std::vector<std::string> command = {};      // The program and its arguments.
  std::vector<std::string> environment = {};  // The caller's, as "NAME=value".

  int64_t np = 1;      // Ranks of this node, 1 to kMaxRanks.
  int64_t nnodes = 1;  // All nodes have `np` ranks.
  int64_t node_rank = 0;
  // The ranks to start on this node, on several nodes; empty: its own ones.
  std::vector<RankStart> ranks = {};
  std::string master_addr = {};  // Empty stands for 127.0.0.1 on one node.
  int64_t master_port = 0;  // 0: a free port on one node, 29500 on several.

  absl::Duration timeout = absl::InfiniteDuration();
  absl::Duration grace = absl::Seconds(5);  // From SIGTERM to SIGKILL.
  // If set, ranks save their work when asked to end: SIGTERM and SIGUSR1 to
  // this process reach them as SIGUSR1 (mpirun forwards only that), with this
  // time until SIGKILL; a second SIGTERM is SIGKILL.
  std::optional<absl::Duration> save_grace = std::nullopt;
  OutputMode output = OutputMode::kPrefix;
  std::string log_directory = {};  // For kFiles; created if missing.
  bool colour = false;             // Colours the prefixes.
  Bind bind = Bind::kNone;
  // If false, the ranks stay in the launcher's session, each in its own process
  // group. Linux schedules each session as a group (sched(7), autogroup), and
  // sched_yield does not yield to other groups: if there are more ranks than
  // cores and they wait for each other by yielding, one session is faster.
  bool own_sessions = true;

  // The maximum number of failed ranks that are replaced by new processes while
  // the others go on. All ranks then join the next round of the rendezvous; the
  // first is round 0. On a single node its sockets are inherited
  // (collectives/bootstrap/inherited_sockets.h); on several nodes the program
  // has to find out where it is. If this is 0, a failure ends the job.
  int64_t replacements = 0;
  // Called when a rank has failed. Returns the round that the new process
  // joins, the first one that the old process had not joined; nullopt ends the
  // job.
  std::function<std::optional<int64_t>(const RankExit&)> replace = nullptr;
  // Further descriptors above 2 that every rank inherits.
  std::vector<int> inherited = {};
  // Called when a rank has failed and is not replaced, before the others are
  // ended; and on SIGUSR2, which then is not forwarded.
  std::function<void()> on_failure = nullptr;
  std::function<void()> on_user_signal = nullptr;
  // Called once per second with the ranks that are stopped, such as by SIGSTOP.
  // Returns the ranks to kill because they do not answer.
  std::function<std::vector<topology::Rank>(
      const std::vector<topology::Rank>& stopped)>
      find_hung = nullptr;
  // Called once per second. Returns further ranks to start, of nodes that were
  // lost. Their output has no prefixes.
  std::function<std::vector<RankStart>()> take_over = nullptr;
  // Called once per second. Returns a signal for all ranks of this node, 0 for
  // none.
  std::function<int()> next_signal = nullptr;

  static constexpr int64_t kMaxRanks = 4096;
};

// Set the plan's output and binding from the values of the flags --output
// ("prefix", "raw", or a directory that exists or whose path contains a slash)
// and --bind ("none", "core"). InvalidArgument for other values.
absl::Status SetOutput(const std::string& value, LaunchPlan& plan);
absl::Status SetBind(const std::string& value, LaunchPlan& plan);

// InvalidArgument, with the flag of //tools/launch, its value and the allowed
// values, if the plan is invalid.
absl::Status CheckPlan(const LaunchPlan& plan);

// The plan for `ranks` processes of one program, with raw output and one
// session. With `mpi` the only process of the plan is the mpirun of this build,
// which starts the ranks; errors of MpirunCommand.
absl::StatusOr<LaunchPlan> PlanProgram(int64_t ranks, bool mpi,
                                       const std::string& program,
                                       std::vector<std::string> arguments);

// "rank 3 (pid 12) was killed by SIGKILL after 2.50 s".
std::string DescribeExit(const RankExit& exit);

// How a launch ended.
struct LaunchOutcome {
  std::vector<RankExit> exits;  // In the order in which the ranks ended.
  // The first failure before the launcher ended the ranks. Among failures
  // within 20 ms, a death by signal takes precedence, because its peers exit
  // when they lose the connection to it.
  std::optional<RankExit> failure;
  std::vector<RankExit> also_failed;      // Others within 20 ms.
  std::optional<int> signal;              // Signal that ended the launcher.
  std::vector<topology::Rank> timed_out;  // Still ran at the timeout.
  absl::Duration timeout;                 // The plan's.

  // OK if every rank exited with 0 on its own. Otherwise Aborted or
  // DeadlineExceeded with a one-line message.
  absl::Status ToStatus() const;
  // 0; 1 for a failed run; 128 + n if signal n ended the launcher.
  int ExitCode() const;
};

// The descriptors for the ranks' output. They are borrowed and may be blocking
// or non-blocking.
struct LaunchSinks {
  int out_fd = 1;
  int err_fd = 2;
};

// Launches the ranks of `plan`. Sets close-on-exec on sockets that this process
// inherited from an outer launcher, because peers would not see them close
// while the ranks hold them.
//
// Must be called on the main thread. During the call the program must not start
// other processes, descriptors 0 to 2 must be open, and all other threads must
// block SignalWatch's signals. InvalidArgument for an invalid plan or a missing
// program; FailedPrecondition if a rank cannot be started; Unavailable if a
// sink cannot be written; ResourceExhausted if the system runs out of processes
// or descriptors. No rank is left running after an error.
absl::StatusOr<LaunchOutcome> Launch(const LaunchPlan& plan,
                                     const LaunchSinks& sinks);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
