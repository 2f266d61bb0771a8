// Launch: starts the ranks of one node and returns when all of them have ended.
//
//   LaunchPlan plan;
//   plan.command = {"./train", "--steps=100"};
//   plan.environment = {"PATH=/usr/bin:/bin"};
//   plan.np = 4;
//   TESSERA_ASSIGN_OR_RETURN(LaunchOutcome outcome, Launch(plan, {}));
//   return outcome.ExitCode();
//
// Each rank leads a session of its own (unless the plan says otherwise), has
// the environment of RankEnvironment and, on one node, sockets to rank 0. Rank
// 0 of node 0 has this process's standard input, every other rank /dev/null.
// When a rank fails, at the timeout, and on SIGINT, SIGTERM, SIGHUP or SIGQUIT,
// all process groups get SIGTERM (or that signal), and after the grace period,
// or at the second SIGINT, SIGKILL. SIGUSR1 and SIGUSR2 are forwarded; SIGTSTP
// stops the ranks and this process until SIGCONT.
//
// On return no process of the ranks or their descendants is left, and all
// output is written. If this process is killed, so are the ranks.
#ifndef TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
#define TESSERA_TOOLS_LAUNCH_LAUNCHER_H_

#include <cstdint>
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
  kPrefix,  // Whole lines, "[3] " before each.
  kRaw,     // Whole lines, not a byte more.
  kFiles,   // rank3.log of a directory holds both streams of rank 3.
};

enum class Bind {
  kNone,  // A rank runs where the launcher may.
  kCore,  // Each rank has a core of its own.
};

// The program to start, on which ranks and how.
struct LaunchPlan {
  std::vector<std::string> command = {};      // The program and its arguments.
  std::vector<std::string> environment = {};  // The caller's, as "NAME=value".

  int64_t np = 1;      // Ranks of this node, 1 to kMaxRanks.
  int64_t nnodes = 1;  // All nodes have `np` ranks.
  int64_t node_rank = 0;
  std::string master_addr = {};  // Empty on one node: 127.0.0.1.
  int64_t master_port = 0;       // 0: a free one on one node, 29500 on several.

  absl::Duration timeout = absl::InfiniteDuration();
  absl::Duration grace = absl::Seconds(5);  // From SIGTERM to SIGKILL.
  OutputMode output = OutputMode::kPrefix;
  std::string log_directory = {};  // For kFiles; created if missing.
  bool colour = false;             // Of the prefixes.
  Bind bind = Bind::kNone;
  // False: the ranks stay in the launcher's session, each in a process group of
  // its own. Linux schedules sessions as groups (sched(7), autogroup), and
  // sched_yield does not yield to another group: ranks that exceed the cores
  // and wait for each other by yielding are faster in one session.
  bool own_sessions = true;

  static constexpr int64_t kMaxRanks = 4096;
};

// Set the plan's output and binding from the values of --output ("prefix",
// "raw", or a directory: one that exists, or a path with a slash) and --bind
// ("none", "core"). InvalidArgument for other values.
absl::Status SetOutput(const std::string& value, LaunchPlan& plan);
absl::Status SetBind(const std::string& value, LaunchPlan& plan);

// InvalidArgument with the flag of //tools/launch whose value is invalid, the
// value, and the allowed values.
absl::Status CheckPlan(const LaunchPlan& plan);

// How a launch ended.
struct LaunchOutcome {
  std::vector<RankExit> exits;  // In the order in which the ranks ended.
  // The first failure before the launcher ended the ranks. Among failures
  // within 20 ms, one by a signal comes first: its peers exit because they lost
  // it.
  std::optional<RankExit> failure;
  std::vector<RankExit> also_failed;      // The others within those 20 ms.
  std::optional<int> signal;              // The signal that ended the launcher.
  std::vector<topology::Rank> timed_out;  // Still ran at the timeout.
  absl::Duration timeout;                 // The plan's.

  // OK if every rank exited with 0 by itself. Otherwise Aborted or
  // DeadlineExceeded with a one-line message.
  absl::Status ToStatus() const;
  // 0; 1 for a failed run; 128 + n if signal n ended the launcher.
  int ExitCode() const;
};

// The descriptors for the ranks' output; borrowed, blocking or not.
struct LaunchSinks {
  int out_fd = 1;
  int err_fd = 2;
};

// Sockets that an outer launcher gave this process are closed on exec from then
// on: its peers would not see them close while ranks hold them.
//
// Call it on the main thread of a program that starts no other processes
// meanwhile, has descriptors 0 to 2 open, and whose other threads, if any,
// block SignalWatch's signals. InvalidArgument for an invalid plan or a missing
// program; FailedPrecondition if a rank cannot be started; Unavailable if a
// sink cannot be written; ResourceExhausted if the system has no more processes
// or descriptors. No rank is left running after an error.
absl::StatusOr<LaunchOutcome> Launch(const LaunchPlan& plan,
                                     const LaunchSinks& sinks);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
