// Launch: starts the ranks of one node, and ends when all of them have.
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
// 0 of node 0 has this process's standard input, every other /dev/null. When a
// rank fails, at the timeout, and on SIGINT, SIGTERM, SIGHUP or SIGQUIT, all
// process groups get SIGTERM (or that signal), and after the grace, or at the
// second SIGINT, SIGKILL. SIGUSR1 and SIGUSR2 are passed on; SIGTSTP stops the
// ranks and this process until SIGCONT.
//
// On return no process is left of the ranks or of what they started, and all
// output is written. Should this process be killed, so are the ranks.
#ifndef TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
#define TESSERA_TOOLS_LAUNCH_LAUNCHER_H_

#include "absl/status/statusor.h"
#include "tools/launch/plan.h"

namespace tessera::tools {

// Where the ranks' output goes; borrowed. Written as they take it, whether they
// block or not.
struct LaunchSinks {
  int out_fd = 1;
  int err_fd = 2;
};

// Call it on the main thread of a program that starts no other processes
// meanwhile, has descriptors 0 to 2 open, and whose other threads, if any,
// block SignalWatch's signals. InvalidArgument where the plan makes no sense or
// there is no such program; FailedPrecondition where a rank cannot be started;
// Unavailable where a sink takes no more; ResourceExhausted where the system
// gives no more processes or descriptors. All ranks are ended then.
absl::StatusOr<LaunchOutcome> Launch(const LaunchPlan& plan,
                                     const LaunchSinks& sinks);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCHER_H_
