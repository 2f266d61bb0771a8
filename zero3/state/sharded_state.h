// ShardedState: the state of a model in training, partitioned over the ranks of
// a group.
#ifndef TESSERA_ZERO3_STATE_SHARDED_STATE_H_
#define TESSERA_ZERO3_STATE_SHARDED_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/tensor/tensor_view.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/tier/memory_tier.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/first_values.h"
#include "zero3/state/gradient_clipping.h"
#include "zero3/state/gradient_reducer.h"
#include "zero3/state/host_copies.h"
#include "zero3/state/loss_scaler.h"
#include "zero3/state/model_weights.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_groups.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

struct UpdateReport {
  double gradient_norm = 0;  // The whole model's, unscaled, before clipping.
  double clip_factor = 1;
  double loss_scale = 1;  // The scale of this step's gradients.
  // A gradient was infinite or NaN, so that only the loss scale was changed.
  bool skipped = false;
  // The number of infinite or NaN elements in the reduced gradients that this
  // rank measured; other ranks report theirs.
  int64_t non_finite = 0;
  // The number of this rank's parameters that the host updated before the norm
  // was known; the updates are undone if the step is skipped or clipped.
  int64_t stepped_early = 0;
  // Traffic of this rank's shards with tiers in this step.
  ShardTraffic traffic = {};
};

// The state of a model in training (parameters, gradients, master weights,
// moments), partitioned over the ranks of a group.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto state, ShardedState::Create(model, {.stage = 3}, {&data_group}));
//   TESSERA_RETURN_IF_ERROR(state->Fill(initialise));
//   // Each step, forward; the next layer is gathered while this one computes:
//   TESSERA_RETURN_IF_ERROR(state->StartGather(next_layer));
//   TESSERA_RETURN_IF_ERROR(state->AwaitGather(layer));
//   TESSERA_ASSIGN_OR_RETURN(TensorView weight, state->Value(id));
//   TESSERA_RETURN_IF_ERROR(state->Release(layer));
//   // Backward gathers in the same way; reductions overlap the next layer.
//   TESSERA_ASSIGN_OR_RETURN(TensorView gradient, state->Gradient(id));
//   TESSERA_RETURN_IF_ERROR(state->ReduceGradients(layer));
//   TESSERA_ASSIGN_OR_RETURN(UpdateReport report, state->Step());
//
//   stage   whole on every rank                  sharded
//   0       everything
//   1       parameters, gradients                optimizer state
//   2       parameters; gradients of the         gradients, optimizer state
//           current layer
//   3       gathered and small parameters,       everything
//           gradients of the current layer
//
// The stages are those of Rajbhandari et al., ZeRO, arXiv 1910.02054, section
// 5. All stages give the same parameters: sums are over the same ranks in the
// same order, and the update of an element does not depend on the rank and the
// offset where it is stored.
//
// Fill, StartGather, Acquire, ReduceGradients and Step are collectives, which
// all ranks call in the same order: if one rank deviates, all get an error that
// names the parameter. InvalidArgument and FailedPrecondition for this rank's
// own call have no side effects unless stated otherwise. Any other error of
// these calls (of a group, a tier, a budget) makes the state permanently
// unusable on every rank: no rank waits for the failed one, and all report its
// number and its reason. Resume from the last checkpoint. One thread at a time.
//
// Work on the state is enqueued on options.queue, and so must be the caller's
// use of values and gradients. Calls order later work of the queue and do not
// wait for the device, except for Step, which waits once, for the norm of the
// gradients. With optimizer_on_host, Step also waits for the download of each
// parameter's gradient before it updates the parameter. Views refer to the
// device's memory.
class ShardedState {
 public:
  // A collective of all groups. All values are zero. InvalidArgument for
  // invalid options; ResourceExhausted if a budget is too small.
  static absl::StatusOr<std::unique_ptr<ShardedState>> Create(
      const ModelParameters& model, const ShardedStateOptions& options,
      const ShardedStateGroups& groups);

  // Waits for the device's work.
  ~ShardedState();

  const StateLayout& layout() const { return context_.layout; }
  topology::Rank rank() const { return context_.rank; }
  const ShardedStateOptions& options() const { return options_; }
  // Bytes in this rank's own memory, by purpose; tiers count their own.
  offload::Usage usage() const { return context_.device.accounting->usage(); }

  // Initialises every element. options().fill_threads threads call `fill`
  // concurrently, as FillValues does.
  using Filler = zero3::Filler;
  absl::Status Fill(Filler fill);

  // A window is a list of parameters that are used together, such as those of a
  // layer. Below stage 3 all parameters are always whole: Step starts to gather
  // their new values, and AwaitGather and Value wait for them.
  //
  // Announces a gather, so that shards in a tier are prefetched.
  absl::Status AnnounceGather(std::span<const ParameterId> window);
  // Starts to gather a window; several windows may be in flight.
  absl::Status StartGather(std::span<const ParameterId> window);
  // Later work of the queue sees the whole parameters of the window.
  absl::Status AwaitGather(std::span<const ParameterId> window);
  // StartGather and AwaitGather.
  absl::Status Acquire(std::span<const ParameterId> window);
  absl::Status Release(std::span<const ParameterId> window);

  // The values, with the parameter's shape; valid until its windows are
  // released.
  absl::StatusOr<TensorView> Value(ParameterId id);

  // The gradient that a backward pass adds to, with the parameter's shape;
  // initially zeros. At stages 2 and 3 it is valid until it is reduced.
  absl::StatusOr<TensorView> Gradient(ParameterId id);
  // Starts to sum the gradients of a window over the ranks. A window has all
  // trainable parameters of a group of the model. Call it once a step, after
  // the last micro-batch, at stages 0 and 1, and any number of times at stages
  // 2 and 3.
  absl::Status ReduceGradients(std::span<const ParameterId> window);
  // The reduced gradient of the elements that this rank owns, [n]. The caller
  // may change it until Step, for example to add the gradient of a tied
  // embedding from another pipeline stage.
  absl::StatusOr<TensorView> OwnGradient(ParameterId id);

  // The factor for the loss of this step.
  double loss_scale() const { return scaler_.scale(); }
  // The traffic of all steps; near_bytes is the maximum over the steps.
  const ShardTraffic& total_traffic() const { return total_traffic_; }
  absl::Status SetLearningRate(double learning_rate);

  // Runs the optimizer with the gradients of this step. FailedPrecondition on
  // every rank, naming a rank and a parameter, if a gradient was not reduced
  // (unless options.allow_unused). `matrices`, a collective whose
  // ranks may differ from those of the state's groups, is required if and only
  // if options.UpdatesMatrices().
  absl::StatusOr<UpdateReport> Step(MatrixUpdates* matrices = nullptr);

  // The two parts of Step, for a model whose state is several ShardedStates
  // (parameters that are sharded over different groups): call Measure on each,
  // add up the results, and call StepMeasured on each with the sum. All are
  // clipped by one norm and skipped together. Measure is a collective too;
  // errors as Step. StepMeasured applies `factors`, in which the entries of a
  // parameter are adjacent, to the new weights, unless the step is skipped.
  absl::StatusOr<offload::GradientStatistics> Measure();
  absl::StatusOr<UpdateReport> StepMeasured(
      const offload::GradientStatistics& of_model,
      MatrixUpdates* matrices = nullptr,
      std::span<const ElementScale> factors = {});

  // Brackets an evaluation, between steps and on every rank: weights may be
  // gathered, used and released, but no gradients computed. Later steps have
  // the same bits, times and traffic as without the evaluation. EndEvaluation
  // returns FailedPrecondition while a parameter is gathered.
  void BeginEvaluation() { is_evaluating_ = true; }
  absl::Status EndEvaluation();

  // For checkpoints: the elements that this rank owns and the steps taken.
  // FinishRestoring publishes restored values to the other ranks.
  ModelWeights& weights() { return *weights_; }
  Queue& queue() const { return context_.queue(); }
  // Staging memory for copies between the host and the state's memory, on the
  // state's queue.
  StagingPool& staging() { return staging_; }
  OptimizerShard& optimizer() { return *optimizer_; }
  LossScaler& scaler() { return scaler_; }
  int64_t steps() const { return steps_; }
  absl::Status FinishRestoring(int64_t steps);

 private:
  ShardedState(const StateContext& context, const ShardedStateOptions& options,
               StateGroups groups);

  absl::Status CreateParts();
  absl::Status CheckIds(std::span<const ParameterId> window) const;
  absl::Status CheckFactors(std::span<const ElementScale> factors) const;
  // If `status` is an error other than FailedPrecondition, aborts the groups,
  // so that no rank waits for this one. Returns `status`.
  absl::Status AbortOnError(absl::Status status);
  absl::Status BeginTraffic();
  absl::Status BeginStepOfTiers();
  absl::StatusOr<ShardTraffic> EndStepOfTiers();
  absl::StatusOr<offload::GradientStatistics> MeasureGradients();
  absl::StatusOr<UpdateReport> UpdateWeights(
      const offload::GradientStatistics& of_model, MatrixUpdates* matrices,
      std::span<const ElementScale> factors);

  const StateContext context_;
  const ShardedStateOptions options_;
  StateGroups groups_;
  LossScaler scaler_;
  StagingPool staging_;
  int64_t steps_ = 0;
  bool is_evaluating_ = false;
  // The report of the step that was measured.
  std::optional<UpdateReport> measured_;
  // True if the last step was neither clipped nor skipped: the next one rarely
  // is.
  bool may_speculate_ = true;
  ShardTraffic total_traffic_;

  // In the order of a training step. The host's parts are null unless the host
  // executes the step.
  std::shared_ptr<ShardPrefetch> prefetch_, host_prefetch_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<HostCopies> host_copies_;
  std::unique_ptr<GradientReducer> gradients_;
  std::unique_ptr<GradientClipping> clipping_;
  std::unique_ptr<OptimizerShard> optimizer_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDED_STATE_H_
