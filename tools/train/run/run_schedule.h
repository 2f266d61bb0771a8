// RunSchedule: what the ranks of a run's pipelines do in a step, layer by
// layer.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunSchedule schedule,
//                            RunSchedule::Create(options));
//   schedule.layers();    // A pipeline::Schedule whose stages are windows of
//                         // LlamaLayers, with UNSHARD, RESHARD and
//                         REDUCE_GRAD.
//
// The same on every rank, from the options alone.
#ifndef TESSERA_TOOLS_TRAIN_RUN_RUN_SCHEDULE_H_
#define TESSERA_TOOLS_TRAIN_RUN_RUN_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "tools/train/run/run_options.h"

namespace tessera::train {

// What a window of the model costs, of a micro-batch on one rank: operations
// and bytes, counted, and times as the simulator wants them. The times assume
// what StepRates says; only their ratios matter to what is chosen.
struct StepRates {
  double flops_per_second = 40e9;  // Of a thread.
  double bytes_per_second = 4e9;   // Between data-parallel ranks.
};
pipeline::Costs WindowCosts(const RunOptions& options,
                            const StepRates& rates = {});

// The computations of pipeline stages, and how many windows each has. Nothing
// is placed or proven: for those who price many runs.
struct RunStages {
  pipeline::Schedule schedule;
  std::vector<int64_t> windows;
};
// As RunSchedule::Create, but for limits.
absl::StatusOr<RunStages> StagesOfRun(const RunOptions& options);

class RunSchedule {
 public:
  // InvalidArgument if the schedule does not exist or does not fit the mesh,
  // the batch or the model, or a limit is below what one layer needs (the
  // message names the layer and its bytes).
  static absl::StatusOr<RunSchedule> Create(const RunOptions& options);

  const RunStages& stages() const { return stages_; }
  // The same by window, with gathers and reductions; and with messages.
  const pipeline::Schedule& layers() const { return layers_; }
  const pipeline::Schedule& lowered() const { return lowered_; }
  // Of `lowered`, with bytes of gathered weights and whole gradients.
  const pipeline::Proof& proof() const { return proof_; }
  // How gathers and reductions were placed.
  const pipeline::ParameterOptions& placement() const { return placement_; }
  // "gathers 1 layer ahead, reduces at each micro-batch".
  std::string Describe() const;

 private:
  RunStages stages_;
  pipeline::Schedule layers_;
  pipeline::Schedule lowered_;
  pipeline::Proof proof_;
  pipeline::ParameterOptions placement_;
};

// "embedding", "layer 3", "head": a window of a model, for messages.
std::string WindowName(const RunOptions& options, int32_t window);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_RUN_RUN_SCHEDULE_H_
