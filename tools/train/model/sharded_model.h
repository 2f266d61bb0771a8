// The weights of a rank's layers, with their state partitioned over
// data-parallel ranks, and the initial weights of a model.
//
//   const FirstWeights first({.seed = 7, .deviation = 0.02});
//   TESSERA_ASSIGN_OR_RETURN(
//       auto model,
//       ShardedModel::Create(layers->windows(), options,
//                            {.dense = {.shard = data, .model = model}},
//                            first_values));
//   LlamaPasses passes(tokens, *model);
//   model->BeginStep();
//   ...  // the pipeline gathers, computes and reduces through WeightAccess
//   TESSERA_ASSIGN_OR_RETURN(zero3::UpdateReport report, model->Step());
//
// Experts that are divided among the ranks of an expert group have a separate
// state, because fewer ranks hold the same elements. A step clips or skips both
// states by one norm. The layers' parameters are bound to the states' memory.
// One thread at a time.
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
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/model/matrix_exchange.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

// The initial weights of a model, the same on every mesh. Norms are ones and
// biases of routers zeros. Every other element is normally distributed with
// Options::deviation and derived from the seed, its tensor's name and its index
// in the whole tensor. A tied head equals the embedding. LoRA's factor b is
// zeros, and a has the variance of PEFT's, 1 / (3 in).
class FirstWeights {
 public:
  struct Options {
    uint64_t seed = 0;
    double deviation = 0;
    bool tied_embeddings = false;
  };

  explicit FirstWeights(const Options& options) : options_(options) {}

  // Sets `elements`, contiguous in host memory, to the parameter's elements
  // from `begin` on, rounded to its type. The parameter need not have memory.
  // Thread-safe.
  absl::Status Draw(const tensor_parallel::Parameter& parameter, int64_t begin,
                    TensorView elements) const;

 private:
  const Options options_;
};

// The ranks of a model's states.
struct ModelGroups {
  zero3::ShardedStateGroups dense = {};
  // Without a shard group the model has no state of experts.
  zero3::ShardedStateGroups experts = {};
};

class ShardedModel final : public WeightAccess {
 public:
  // Sets the elements [begin, begin + n) that a parameter holds.
  using FirstValues =
      std::function<absl::Status(const tensor_parallel::Parameter& parameter,
                                 int64_t begin, TensorView elements)>;

  // A collective. The parameters need no memory of their own, and have none
  // afterwards. A parameter of several windows belongs to the first one, with
  // which its gradient is reduced. The norm excludes the gradients of
  // `uncounted` (copies that another rank counts) and elements of which this
  // rank is not the primary holder. `matrices` is used with Muon, Adafactor and
  // Shampoo.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Create(
      std::span<const ParameterWindow> windows,
      const zero3::ShardedStateOptions& options, const ModelGroups& groups,
      const FirstValues& first,
      std::span<const tensor_parallel::Parameter* const> uncounted = {},
      const MatrixUpdateOptions& matrices = {});

  // The parameters that are sharded over the same ranks.
  struct Part {
    std::unique_ptr<zero3::ShardedState> state;
    // By id; Adafactor's moments, which no layer has, are last. Shampoo's
    // statistics have a part of their own.
    std::vector<tensor_parallel::Parameter*> parameters;
    std::vector<std::unique_ptr<tensor_parallel::Parameter>> moments = {};
    // The updates of Muon, Adafactor or Shampoo; otherwise null.
    std::unique_ptr<zero3::MatrixUpdates> updates = {};
    bool of_experts = false;
    bool is_statistics = false;  // Of the matrices of a part before.
    // By window: the parameters it uses, and those whose gradients it reduces.
    std::vector<std::vector<zero3::ParameterId>> used;
    std::vector<std::vector<zero3::ParameterId>> reduced;
  };
  // The dense parameters, then the experts if they have a separate state; then
  // the statistics of both, with Shampoo.
  std::span<Part> parts() { return parts_; }
  // The state of the dense parameters, and these parameters ordered by id. All
  // states share one account of memory.
  zero3::ShardedState& state() { return *parts_[0].state; }
  std::span<tensor_parallel::Parameter* const> parameters() const {
    return parts_[0].parameters;
  }
  int64_t parameter_count() const;  // Elements held by this rank's layers.
  // The parameters of a window and their moments.
  std::vector<tensor_parallel::Parameter*> ParametersOf(size_t window) const;
  // Traffic of all states with tiers, over all steps.
  zero3::ShardTraffic total_traffic() const;
  double loss_scale() const { return parts_[0].state->loss_scale(); }

  // Begins a step or an evaluation's forwards. `gathers`, the windows in the
  // order in which they will be gathered, must remain valid until its end:
  // while one window is gathered, shards of the next ones are prefetched from
  // their tier.
  void BeginStep(std::span<const size_t> gathers = {}) {
    gather_order_ = gathers;
    gathers_ = 0;
  }
  absl::Status SetLearningRate(double learning_rate);
  // A factor on rows of a parameter's whole tensor.
  struct RowScale {
    const tensor_parallel::Parameter* parameter = nullptr;
    tensor_parallel::IndexRange rows = {};
    double factor = 1;
  };
  // Unless the step is skipped, multiplies the rows that this rank holds by
  // their factors after the optimizer's update. Every holder of a row must give
  // its factor.
  absl::StatusOr<zero3::UpdateReport> Step(
      std::span<const RowScale> factors = {});
  // Waits for gathers of new weights, which may outlast their step below stage
  // 3.
  absl::Status AwaitGathers();
  // See zero3::ShardedState.
  void BeginEvaluation();
  absl::Status EndEvaluation();

  // Adds `change` [elements held], of the parameter's type and on the device,
  // to a parameter that is not trained. The next Step publishes the result.
  absl::Status AddToValue(const tensor_parallel::Parameter& parameter,
                          ConstTensorView change, tensor_parallel::Ops& ops);

  // WeightAccess.
  absl::Status StartGather(size_t window) override;
  absl::Status UseValues(size_t window) override;
  absl::Status UseGradients(size_t window) override;
  absl::Status Release(size_t window) override;
  absl::Status Reduce(size_t window) override;
  absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) override;

 private:
  struct Place {
    size_t part;
    zero3::ParameterId id;
  };

  ShardedModel(std::span<const ParameterWindow> windows,
               const zero3::ShardedStateOptions& options)
      : windows_(windows.begin(), windows.end()),
        stage_(options.stage),
        optimizer_(options.optimizer) {}

  absl::Status Divide(bool parts_experts);
  absl::StatusOr<zero3::ModelParameters> Describe(const Part& part) const;
  absl::Status AddMoments(const MatrixUpdateOptions& matrices);
  absl::Status AddStatistics(const zero3::ShardedStateOptions& options,
                             const ModelGroups& groups,
                             const MatrixUpdateOptions& matrices);
  absl::Status AddStatistics(size_t of, int64_t block, int64_t shard_ranks,
                             const MatrixUpdateOptions& matrices);
  absl::Status CreateState(
      Part& part, const zero3::ShardedStateOptions& options,
      const zero3::ShardedStateGroups& groups,
      std::span<const tensor_parallel::Parameter* const> uncounted);
  absl::StatusOr<std::unique_ptr<zero3::MatrixUpdates>> UpdatesOf(
      size_t part, const zero3::ShardedStateOptions& options,
      collectives::Communicator* shard, const zero3::StateDevice& device,
      const MatrixUpdateOptions& matrices);
  absl::Status CreateUpdates(const zero3::ShardedStateOptions& options,
                             const ModelGroups& groups,
                             const MatrixUpdateOptions& matrices);
  absl::Status SetValues(const FirstValues& first);
  absl::Status BindWhole();
  zero3::ShardedState& StateOf(const Place& place) {
    return *parts_[place.part].state;
  }
  // The factors on elements of a part's parameters that this rank holds.
  std::vector<zero3::ElementScale> FactorsOf(
      size_t part, std::span<const RowScale> factors) const;
  const Place& PlaceOf(const tensor_parallel::Parameter* parameter) const {
    return places_.at(parameter);
  }

  const std::vector<ParameterWindow> windows_;
  const int stage_;
  const zero3::OptimizerKind optimizer_;
  std::vector<Part> parts_;
  // With Shampoo: the matrices of each part, in the order of their statistics.
  std::vector<std::vector<StateMatrix>> preconditioned_;
  absl::flat_hash_map<const tensor_parallel::Parameter*, Place> places_;
  absl::flat_hash_map<const tensor_parallel::Parameter*, size_t> first_windows_;
  std::span<const size_t> gather_order_;
  size_t gathers_ = 0;  // The number of gathers started in this step.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_
