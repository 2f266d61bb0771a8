// ShardedState: the state of a model in training, partitioned over the ranks of
// a group, with its options, its groups and the report of a step.
#ifndef TESSERA_ZERO3_STATE_SHARDED_STATE_H_
#define TESSERA_ZERO3_STATE_SHARDED_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/tier/memory_tier.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/gradient_reducer.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/weight_gather.h"
#include "zero3/state/whole_parameters.h"

namespace tessera::zero3 {

// Elements [begin, end) of a parameter.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

struct ShardedStateOptions {
  int stage = 3;
  LayoutKind layout = LayoutKind::kChunks;
  // Slots are multiples of this number of elements and of the block size of the
  // moments.
  int64_t alignment = 1;
  // Stage 3: parameters with fewer elements stay whole on every rank.
  int64_t persistence_threshold = 0;

  // The type of the gradients of 16-bit parameters, in memory, in messages and
  // in shards. Other gradients have the parameter's type.
  DType gradient_dtype = DType::kF32;
  int64_t bucket_bytes = 25'000'000;
  // Average over shard and replica ranks; otherwise sum.
  bool average_gradients = false;
  // Treat gradients that no rank reduced in a step as zeros.
  bool allow_unused = false;
  // ZeRO++ (zero3/state). qgZ: reduce gradients as int8 blocks; needs stage 1
  // or more. qwZ, stage 3: gather weights as int8 blocks. hpZ, stage 3: this
  // many neighbouring ranks of the shard group keep a second copy of gathered
  // weights until the step ends; 0: no second copy.
  bool quantized_gradients = false;
  bool quantized_weights = false;
  int64_t hpz_partition_size = 0;
  // Overlap reductions and tier reads with the caller's work. This needs memory
  // for the gradients of a second window, and near memory for the state of two
  // more parameters.
  bool overlap = true;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  offload::AdamWOptions adamw = {};  // For kAdamW.
  offload::SgdOptions sgd = {};      // For kSgd.
  // For kMuon. The learning rate, weight decay and threads are those of
  // `adamw`, which also updates the parameters that are not orthogonalized.
  double muon_momentum = 0.95;
  DecayedParameters decayed = DecayedParameters::kAll;
  offload::MomentFormat moments = offload::MomentFormat::F32();
  double clip_norm = 0;  // 0: gradients are not clipped.
  int fill_threads = 1;  // Threads of ShardedState::Fill.
  LossScaleOptions loss_scale = {};
  // By id, the elements that this rank counts in the gradient norm; another
  // rank of the model group that holds the same elements counts the rest.
  // Empty: this rank counts all its elements.
  std::vector<std::vector<ElementRange>> counted_in_norm = {};

  // The tiers that hold the shards; null: this rank's memory. Parameter tiers
  // need stage 3, gradient tiers stage 2 or 3. A tier must outlive the state.
  // Master weights and moments need lossless tiers (MemoryTier::IsLossless),
  // and so do 32-bit and 64-bit parameters, which are their own master weights:
  // if a codec rounded a second moment to 0, AdamW would divide by epsilon
  // alone. A tier may round 16-bit values and gradients.
  offload::MemoryTier* parameter_tier = nullptr;
  offload::MemoryTier* gradient_tier = nullptr;
  offload::MemoryTier* optimizer_tier = nullptr;
  // ZeRO-Offload: the host executes the optimizer's step on the state in
  // optimizer_tier (OptimizerShardOptions::on_host). Otherwise the state is
  // copied to the device, updated there and copied back. No effect on an
  // immediate queue, where the host executes the step anyway. Default: true if
  // there is an optimizer_tier and the optimizer is not kMuon, whose matrices
  // the device updates.
  std::optional<bool> optimizer_on_host = {};
  // If the host executes the step: memory for speculative updates, which start
  // before the gradient norm is known and are undone if it requires clipping or
  // skipping (OptimizerShardOptions::speculative_bytes). The size of the state
  // in optimizer_tier suffices for all parameters. 0: no speculation.
  int64_t speculative_bytes = 0;
  // Prefix of keys in tiers. Ranks that share a tier need different prefixes.
  std::string key_prefix = "";
  // The budget of this rank's own memory; null: unlimited.
  std::shared_ptr<offload::Accounting> device = nullptr;
  // The queue that computes on the state, whose device holds the state; must
  // outlive the state. Null: HostQueue().
  Queue* queue = nullptr;
  // The operations on that queue; null: HostStateOps(queue).
  std::shared_ptr<StateOps> ops = nullptr;
};

// OK if the options are valid for `model`. Otherwise InvalidArgument, which
// names the option, its value and the allowed values.
absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model);

// The communicators of a rank. Not owned; only used while the state is created.
struct ShardedStateGroups {
  // The ranks over which the state is sharded: data-parallel ranks.
  collectives::Communicator* shard = nullptr;
  // Hybrid sharding: the ranks with the same shards in other shard groups.
  collectives::Communicator* replicas = nullptr;
  // The ranks that hold other parts of the model (tensor and pipeline
  // parallel), for the norm of all gradients.
  collectives::Communicator* model = nullptr;
};

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
  // concurrently and in any order, for ranges [begin, begin + n) of the
  // elements that this rank owns. `fill` sets a tensor [n] of f32, or of f64
  // for f64 parameters.
  using Filler = absl::FunctionRef<absl::Status(
      const ModelParameter& parameter, int64_t begin, TensorView elements)>;
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
  // (unless options.allow_unused). OptimizerKind::kMuon requires `matrices`, a
  // collective whose ranks may differ from those of the state's groups.
  absl::StatusOr<UpdateReport> Step(MatrixUpdates* matrices = nullptr);

  // The two parts of Step, for a model whose state is several ShardedStates
  // (parameters that are sharded over different groups): call Measure on each,
  // add up the results, and call StepMeasured on each with the sum. All are
  // clipped by one norm and skipped together. Measure is a collective too;
  // errors as Step.
  absl::StatusOr<offload::GradientStatistics> Measure();
  absl::StatusOr<UpdateReport> StepMeasured(
      const offload::GradientStatistics& of_model,
      MatrixUpdates* matrices = nullptr);

  // Brackets an evaluation, between steps and on every rank: weights may be
  // gathered, used and released, but no gradients computed. Later steps have
  // the same bits, times and traffic as without the evaluation. EndEvaluation
  // returns FailedPrecondition while a parameter is gathered.
  void BeginEvaluation() { is_evaluating_ = true; }
  absl::Status EndEvaluation();

  // For checkpoints: the elements that this rank owns and the steps taken.
  // FinishRestoring publishes restored values to the other ranks.
  OwnValues& own_values() { return *own_values_; }
  Queue& queue() const { return context_.queue(); }
  // Staging memory for copies between the host and the state's memory, on the
  // state's queue.
  StagingPool& staging() { return staging_; }
  OptimizerShard& optimizer() { return *optimizer_; }
  LossScaler& scaler() { return scaler_; }
  int64_t steps() const { return steps_; }
  absl::Status FinishRestoring(int64_t steps);

 private:
  ShardedState(const StateContext& context, const ShardedStateOptions& options)
      : context_(context),
        options_(options),
        scaler_(options.loss_scale),
        staging_(context.queue()) {}

  absl::Status JoinGroups(const ShardedStateGroups& groups);
  absl::Status JoinSecondary(collectives::Communicator& shard);
  absl::Status CheckIds(std::span<const ParameterId> window) const;
  absl::Status BeginTraffic();
  absl::Status BeginStepOfTiers();
  absl::StatusOr<ShardTraffic> EndStepOfTiers();
  ShardStoreOptions StoreOptions(offload::Purpose purpose) const;
  bool IsWhole(const ModelParameter& parameter) const;
  bool StepsOnHost() const;
  // The near memory for the state that the prefetcher of the host, or that of
  // the device, reads.
  int64_t NearBytesOfTiers(bool of_host) const;
  DType GradientTypeOf(const ModelParameter& parameter) const;
  absl::Status CreateParameters();
  absl::Status CreateGradients();
  absl::Status CreateOptimizer();
  absl::Status FillOne(const ModelParameter& parameter, Filler fill,
                       ThreadPool& pool);
  absl::Status FillMemory(const ModelParameter& parameter,
                          const offload::TypedSpan& own,
                          std::span<std::byte> master, Filler fill,
                          ThreadPool& pool);
  // On an error other than FailedPrecondition, aborts the groups, so that no
  // rank waits for this one. Returns `status`.
  absl::Status Tell(absl::Status status);
  absl::StatusOr<offload::GradientStatistics> MeasureAlone();
  absl::StatusOr<UpdateReport> StepAlone(
      const offload::GradientStatistics& of_model, MatrixUpdates* matrices);
  absl::Status StartReducing(std::span<const ParameterId> window);
  // Starts to download the gradients that are final, which assumes that each is
  // reduced as often as in the previous step.
  absl::Status DownloadFinal(std::span<const ParameterId> reduced);
  absl::Status CheckAllReduced();
  absl::Status CloseOwnGradients();
  // The elements that this rank counts in the norm, relative to the first that
  // it owns.
  std::vector<ElementRange> CountedOf(const ModelParameter& parameter) const;
  absl::Status CreateStatistics();
  absl::Status StartMeasuring();
  // Sets report.stepped_early.
  absl::StatusOr<offload::GradientStatistics> SumOfOwn(UpdateReport& report);
  absl::StatusOr<offload::GradientStatistics> MeasureAll(UpdateReport& report);

  // The report of the step that was measured.
  std::optional<UpdateReport> measured_;

  const StateContext context_;
  const ShardedStateOptions options_;
  LossScaler scaler_;
  StagingPool staging_;
  Buffer statistics_;  // One GradientStatistics for each CountedOf.
  int64_t steps_ = 0;
  bool is_evaluating_ = false;
  // True if the last step was neither clipped nor skipped: the next one rarely
  // is.
  bool may_speculate_ = true;
  ShardTraffic total_traffic_;
  std::vector<ParameterId> open_gradients_;  // Opened by OwnGradient.
  // If the host executes the step: the window whose reduction was started last,
  // and how often each gradient was reduced, by id, in this step and in the
  // previous one.
  std::vector<ParameterId> last_reduced_;
  std::vector<int64_t> reductions_, previous_reductions_;

  // One group per kind of traffic, so that they do not wait for each other.
  struct Groups {
    std::unique_ptr<collectives::Communicator> gather;
    std::unique_ptr<collectives::Communicator> secondary;  // hpZ.
    std::unique_ptr<collectives::Communicator> reduce;
    std::unique_ptr<collectives::Communicator> agree;  // On the host.
    std::unique_ptr<collectives::Communicator> replicas;
    std::unique_ptr<collectives::Communicator> model;  // On the host.
  };
  Groups groups_;

  std::shared_ptr<ShardPrefetch> prefetch_;
  std::shared_ptr<ShardPrefetch> host_prefetch_;  // Null unless StepsOnHost().
  std::unique_ptr<WholeParameters> whole_;
  std::unique_ptr<ShardStore> value_shards_;  // Stage 3.
  std::unique_ptr<OwnValues> own_values_;
  std::unique_ptr<GatheredParameters> gathered_;  // Stage 3.
  std::unique_ptr<ShardStore> gradient_shards_;   // Stages 2 and 3.
  std::unique_ptr<GradientReducer> gradients_;
  std::unique_ptr<OptimizerShard> optimizer_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDED_STATE_H_
