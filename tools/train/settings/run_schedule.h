// The schedule of a training step: the actions of each pipeline rank by layer,
// which are computations, gathers of weights, reductions of gradients and
// messages.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunSchedule schedule,
//                            RunSchedule::Create(options));
//   schedule.layers();   // by window of LlamaLayers, with UNSHARD, RESHARD
//                        // and REDUCE_GRAD
//   schedule.lowered();  // with messages
//
// The schedule depends only on the options, so every rank computes the same.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_RUN_SCHEDULE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_RUN_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "tools/train/settings/run_options.h"

namespace tessera::train {

// The rates assumed by the simulation. Only their ratio affects the selected
// placement.
struct StepRates {
  double flops_per_second = 40e9;  // Per thread.
  double bytes_per_second = 4e9;   // Between data-parallel ranks.
};
// The simulator's costs of each window for one micro-batch on one rank, in
// seconds and bytes.
pipeline::Costs WindowCosts(const RunOptions& options,
                            const StepRates& rates = {});

// The computations of the pipeline stages, and the number of windows of each.
// Cheap enough to evaluate many configurations, because gathers and reductions
// are not placed and nothing is proven.
struct RunStages {
  pipeline::Schedule schedule;
  std::vector<int64_t> windows;
};
// Returns the same errors as RunSchedule::Create, except for limits.
absl::StatusOr<RunStages> StagesOfRun(const RunOptions& options);

class RunSchedule {
 public:
  // InvalidArgument if the schedule does not exist or does not fit the mesh,
  // the batch or the model, or if one layer exceeds a limit (the message names
  // the layer and its bytes).
  static absl::StatusOr<RunSchedule> Create(const RunOptions& options);

  const RunStages& stages() const { return stages_; }
  // The actions by window, including gathers and reductions. `lowered` also
  // includes messages.
  const pipeline::Schedule& layers() const { return layers_; }
  const pipeline::Schedule& lowered() const { return lowered_; }
  // The proof of `lowered`, with the bytes of gathered weights and of whole
  // gradients.
  const pipeline::Proof& proof() const { return proof_; }
  // The options with which gathers and reductions were placed.
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

// The name of a window for messages: "embedding", "layer 3" or "head".
std::string WindowName(const RunOptions& options, int32_t window);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_RUN_SCHEDULE_H_
