// StartRanks: the ranks of a LaunchPlan, started.
#ifndef TESSERA_TOOLS_LAUNCH_START_H_
#define TESSERA_TOOLS_LAUNCH_START_H_

#include <signal.h>
#include <sys/resource.h>

#include "absl/status/status.h"
#include "tools/launch/multiplexer.h"
#include "tools/launch/plan.h"
#include "tools/launch/rank_processes.h"

namespace tessera::tools {

// What programs have that they would not inherit from this process as it is.
struct OriginalState {
  sigset_t mask;
  rlimit descriptor_limit;
};

// Starts the ranks of this node, whose output `output` reads or, with kFiles,
// files hold. The errors of Launch; ranks may have started then.
absl::Status StartRanks(const LaunchPlan& plan, const OriginalState& original,
                        RankProcesses& ranks, OutputMultiplexer& output);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_START_H_
