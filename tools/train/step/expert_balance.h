// ExpertBalance: counts the tokens of a step that chose each expert of a
// model's mixtures, and moves the biases of routers.
//
//   TESSERA_RETURN_IF_ERROR(experts.Count(data, pp));  // after the passes
//   record.expert_imbalance = experts.Imbalance();
//   TESSERA_RETURN_IF_ERROR(experts.MoveBiases(1));
//
// Without experts all of this does nothing.
#ifndef TESSERA_TOOLS_TRAIN_STEP_EXPERT_BALANCE_H_
#define TESSERA_TOOLS_TRAIN_STEP_EXPERT_BALANCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/model/sharded_model.h"

namespace tessera::train {

class ExpertBalance {
 public:
  // The arguments must outlive this.
  ExpertBalance(LlamaLayers& layers, ShardedModel& model, LlamaPasses& passes)
      : layers_(layers), model_(model), passes_(passes) {}

  // Sums the loads of the rank's layers since the last call over the ranks of
  // the groups. A collective of them.
  absl::Status Count(collectives::Communicator& data,
                     collectives::Communicator& pp);

  // The load of the busiest expert divided by the mean; the maximum over the
  // layers.
  std::optional<double> Imbalance() const;

  // Moves the biases of all layers' routers, times `sign`: up for experts that
  // were chosen by fewer tokens of the step than the mean, down for others
  // (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Runs with adapters keep
  // them.
  absl::Status MoveBiases(double sign);

 private:
  int64_t experts() const { return layers_.options().model.mixture.experts; }
  // The router of the window's mixture; null if it has none.
  tensor_parallel::MoeMlp* MoeOf(size_t window);
  double BiasStep(int64_t layer, int64_t expert) const;

  LlamaLayers& layers_;
  ShardedModel& model_;
  LlamaPasses& passes_;
  // The number of the step's tokens that chose each expert, [layers, experts],
  // with zeros for layers without experts.
  std::vector<int64_t> loads_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_STEP_EXPERT_BALANCE_H_
