#include "tools/launch/launcher.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/launch/descriptor_limit.h"
#include "tools/launch/line_writer.h"
#include "tools/launch/multiplexer.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"
#include "tools/launch/start.h"
#include "tools/launch/supervisor.h"

namespace tessera::tools {
namespace {

// A rank takes two pipes, two ends of a socket and a pidfd; the rest is for
// this process.
rlim_t DescriptorsFor(const LaunchPlan& plan) {
  return static_cast<rlim_t>(5 * plan.np + 128);
}

LineWriter MakeWriter(const LaunchPlan& plan) {
  if (plan.output != OutputMode::kPrefix) return LineWriter();
  return LineWriter(RankPrefixes(plan.node_rank * plan.np, plan.np,
                                 plan.nnodes * plan.np, plan.colour));
}

}  // namespace

absl::StatusOr<LaunchOutcome> Launch(const LaunchPlan& plan,
                                     const LaunchSinks& sinks) {
  TESSERA_RETURN_IF_ERROR(CheckPlan(plan));
  TESSERA_ASSIGN_OR_RETURN(const auto signals, SignalWatch::Create());
  TESSERA_ASSIGN_OR_RETURN(const auto limit,
                           DescriptorLimit::Raise(DescriptorsFor(plan)));
  TESSERA_ASSIGN_OR_RETURN(const auto ranks, RankProcesses::Create());
  OutputMultiplexer output(sinks.out_fd, sinks.err_fd, MakeWriter(plan));
  TESSERA_RETURN_IF_ERROR(StartRanks(
      plan, {signals->original_mask(), limit->original()}, *ranks, output));
  return Supervisor(plan, *signals, *ranks, output).Run();
}

}  // namespace tessera::tools
