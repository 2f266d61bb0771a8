// ShardedModel: the weights of a rank's layers, with their state partitioned
// over data-parallel ranks.
//
//   const FirstWeights first({.seed = 7, .deviation = 0.02});
//   TESSERA_ASSIGN_OR_RETURN(
//       auto model,
//       ShardedModel::Create(layers->windows(), options,
//                            {.shard = data_group, .model = model_group},
//                            first_values));
//   LlamaPasses passes(tokens, *model);
//   model->BeginStep();
//   ...  // the pipeline gathers, computes and reduces through WeightAccess
//   TESSERA_ASSIGN_OR_RETURN(zero3::UpdateReport report, model->Step());
//
// The layers' parameters are bound to the state's memory. One thread at a time.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_
#define TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/llama_stage.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

// The initial weights of a model, the same on every mesh. Norms are ones; every
// other element is normal with the deviation, drawn by the seed, its tensor's
// name and its index in the whole tensor. A tied head equals the embedding.
class FirstWeights {
 public:
  struct Options {
    uint64_t seed = 0;
    double deviation = 0;
    bool tied_embeddings = false;
  };

  explicit FirstWeights(const Options& options) : options_(options) {}

  // Sets `elements`, contiguous in host memory, to the parameter's elements
  // from `begin` on, rounded to its type. The parameter needs no memory of its
  // own.
  absl::Status Draw(const tensor_parallel::Parameter& parameter, int64_t begin,
                    TensorView elements) const;

 private:
  const Options options_;
};

class ShardedModel final : public WeightAccess {
 public:
  // Sets the elements [begin, begin + n) that a parameter holds.
  using FirstValues =
      std::function<absl::Status(const tensor_parallel::Parameter& parameter,
                                 int64_t begin, TensorView elements)>;

  // A collective. The parameters need no memory of their own, and have none
  // afterwards. A parameter of several windows belongs to the first one, and
  // its gradient is reduced with that. The norm excludes gradients of
  // `uncounted` (copies that another rank counts), and elements of which this
  // rank is not the primary holder.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Create(
      std::span<const ParameterWindow> windows,
      zero3::ShardedStateOptions options,
      const zero3::ShardedStateGroups& groups, const FirstValues& first,
      std::span<const tensor_parallel::Parameter* const> uncounted = {});

  zero3::ShardedState& state() { return *state_; }
  // In the order of the state's ids.
  std::span<tensor_parallel::Parameter* const> parameters() const {
    return parameters_;
  }

  // Begins a step, or the forwards of an evaluation. `gathers`, the windows
  // that it gathers in order, must outlive it: while one is gathered, shards of
  // the next ones are read from their tier.
  void BeginStep(std::span<const size_t> gathers = {}) {
    gather_order_ = gathers;
    gathers_ = 0;
  }
  absl::StatusOr<zero3::UpdateReport> Step() { return state_->Step(); }

  // WeightAccess.
  absl::Status StartGather(size_t window) override;
  absl::Status UseValues(size_t window) override;
  absl::Status UseGradients(size_t window) override;
  absl::Status Release(size_t window) override;
  absl::Status Reduce(size_t window) override;
  absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) override;

 private:
  ShardedModel(std::span<const ParameterWindow> windows, int stage)
      : windows_(windows.begin(), windows.end()), stage_(stage) {}

  absl::StatusOr<zero3::ModelParameters> Describe();
  absl::Status SetValues(const FirstValues& first);
  absl::Status BindWhole();
  zero3::ParameterId IdOf(const tensor_parallel::Parameter* parameter) const {
    return ids_.at(parameter);
  }

  const std::vector<ParameterWindow> windows_;
  const int stage_;
  std::vector<std::vector<zero3::ParameterId>> window_ids_;
  std::vector<tensor_parallel::Parameter*> parameters_;  // By id.
  absl::flat_hash_map<const tensor_parallel::Parameter*, zero3::ParameterId>
      ids_;
  std::unique_ptr<zero3::ShardedState> state_;
  std::span<const size_t> gather_order_;
  size_t gathers_ = 0;  // Started in this step.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_
