// OptimizerShard: the optimizer's state of a rank and its step; MatrixUpdates:
// updates that depend on whole matrices, of Muon, Adafactor and Shampoo.
#ifndef TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_
#define TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/os/thread_pool.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/lion.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/step_scale.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/parameter_groups.h"
#include "zero3/state/gradient_reducer.h"
#include "zero3/state/host_copies.h"
#include "zero3/state/model_weights.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

// The kinds of state that an optimizer keeps.
inline constexpr StatePart kOptimizerParts[] = {
    StatePart::kMaster, StatePart::kFirstMoment, StatePart::kSecondMoment};

class OptimizerShard;

// A factor on elements [begin, end) of a trained parameter.
struct ElementScale {
  ParameterId id;
  int64_t begin = 0;
  int64_t end = 0;
  double factor = 1;
};

// The elements of orthogonalized parameters that a rank owns, in one step of
// Muon (K. Jordan et al., "Muon: an optimizer for hidden layers", 2024; J. Liu
// et al., "Muon is scalable for LLM training", arXiv 2502.16982). With gradient
// g, momentum m and values p of a matrix:
//
//   m <- momentum * m + g
//   p <- p * (1 - learning_rate * weight_decay)
//        - learning_rate * update(g + momentum * m)
//
// where `update` needs the whole matrix, regardless of which ranks own its
// elements. Adafactor's updates need statistics of it: WriteDirection is not
// used, the gradients are read and the moments kept by the caller. Shampoo's
// depend on the gradient, the first moment and the update of AdamW instead.
class MatrixShards {
 public:
  const StateLayout& layout() const;
  topology::Rank rank() const;

  // Updates the momentum of elements [begin, begin + direction.size()) of the
  // parameter, all of which this rank owns, and sets `direction` to -(g +
  // momentum * m). `direction` is f64 for f64 parameters and f32 otherwise.
  // Call it once a step for each element.
  absl::Status WriteDirection(ParameterId id, int64_t begin,
                              const offload::TypedSpan& direction);
  // p <- p * (1 - learning_rate * weight_decay) - learning_rate * update, for
  // an update of the direction's type. Call it once a step for each element.
  absl::Status Apply(ParameterId id, int64_t begin,
                     const offload::ConstTypedSpan& update);

  // For Shampoo: the same elements as WriteDirection. Steps AdamW's moments,
  // once, and sets `values` to the negative update, without learning rate and
  // decay: -m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon).
  absl::Status WriteAdamWUpdate(ParameterId id, int64_t begin,
                                const offload::TypedSpan& values);
  // -m / (1 - beta1^step), once they were stepped, and -g.
  absl::Status WriteFirstMoment(ParameterId id, int64_t begin,
                                const offload::TypedSpan& values);
  absl::Status WriteGradient(ParameterId id, int64_t begin,
                             const offload::TypedSpan& values);

  // For Adafactor.
  int64_t step() const { return step_; }
  // The factor of gradients.
  double gradient_scale() const { return scale_.unscale * scale_.clip_factor; }
  double LearningRateOf(ParameterId id) const;
  // The threads that step on the host.
  ThreadPool* pool() const;
  // Opens the reduced gradients of the elements that this rank owns, at least
  // one, until CloseGradient.
  absl::StatusOr<offload::ConstTypedSpan> OpenGradient(ParameterId id);
  absl::Status CloseGradient(ParameterId id);
  // The same for the weights: sets the range's parameter (the master weights if
  // there are any) and copy.
  absl::StatusOr<offload::ParameterRange> OpenWeights(ParameterId id);
  absl::Status CloseWeights(ParameterId id, bool changed);
  // Apply for open weights and elements [first, first + update.size()) of them.
  absl::Status ApplyTo(const offload::ParameterRange& weights, ParameterId id,
                       int64_t first, const offload::ConstTypedSpan& update);
  // The same for the values of a frozen parameter.
  absl::StatusOr<offload::TypedSpan> OpenFrozen(ParameterId id);
  absl::Status CloseFrozen(ParameterId id, bool changed);

 private:
  friend class OptimizerShard;

  MatrixShards(OptimizerShard& shard, int64_t step,
               const offload::StepScale& scale)
      : shard_(shard), step_(step), scale_(scale) {}

  // Zeros, of which a step makes the negative direction.
  absl::StatusOr<offload::ParameterRange> ZeroRange(
      ParameterId id, int64_t begin, const offload::TypedSpan& values);
  // Opens the gradient of a range until CloseAfterStep.
  absl::Status OpenGradientOf(ParameterId id, offload::ParameterRange& range);
  absl::StatusOr<offload::MomentSpan> OpenMomentOf(
      StatePart part, ParameterId id, const offload::ParameterRange& range);

  OptimizerShard& shard_;
  const int64_t step_;
  const offload::StepScale scale_;
};

// Updates matrices. The caller of
// ShardedState implements it, because matrices may be sharded over more ranks
// than the state's.
class MatrixUpdates {
 public:
  virtual ~MatrixUpdates() = default;

  // A collective of all ranks that hold parts of the matrices: applies an
  // update to each element once.
  virtual absl::Status Run(MatrixShards& shards) = 0;
};

// The master weights and moments of the elements that this rank owns, and the
// optimizer's step over them.
//
//   TESSERA_RETURN_IF_ERROR(shard->Step(step, scale));
//
// 16-bit parameters have f32 master weights; other parameters are their own
// master weights. State in a tier is read, updated and written back parameter
// by parameter; with `overlap` reads and writes are asynchronous.
//
// On the host (ShardedStateOptions::StepsOnHost): the state stays on the host,
// which reads gradients and writes values through HostCopies, with the same
// bits as on the CPU. Bytes between host and device for each element of a
// 16-bit parameter with gradients of g bytes, with f32 AdamW:
//
//               down    up
//   on the host   g       2
//   else          12      12
//
// The step needs the norm of all gradients, which is known only after the
// backward pass. With speculative_bytes the host, which would be idle until
// then, updates the parameters whose gradients have arrived, without clipping,
// and saves the state that it overwrites. If the norm then requires clipping,
// or a gradient is not finite, it restores the saved state and repeats the
// update, so the result has the bits of a step that waited for the norm. This
// is the speculation-then-validation of Lian et al., SuperOffload, arXiv
// 2509.21271.
class OptimizerShard {
 public:
  // InvalidArgument as for the optimizer's Create. If the host executes the
  // step, `host` has its copies and `prefetch` is the prefetcher of the host;
  // otherwise `host` is null. All arguments must outlive this.
  static absl::StatusOr<std::unique_ptr<OptimizerShard>> Create(
      const StateContext& context, const ShardedStateOptions& options,
      ModelWeights& weights, GradientReducer& gradients, HostCopies* host,
      std::shared_ptr<ShardPrefetch> prefetch);

  // The queue that works on the optimizer's state.
  Queue& queue() const {
    return host_ != nullptr ? HostQueue() : context_.queue();
  }
  absl::Status SetLearningRate(double learning_rate);
  // Bytes of master weights and moments for `slot` elements of a trained
  // parameter.
  static int64_t BytesOfSlot(const ModelParameter& parameter, int64_t slot,
                             const ShardedStateOptions& options);

  // Executes step number `step` without clipping on parameters whose downloads
  // were started, in that order, until the event `known` of the norm happens.
  // Step keeps their state if it does not clip, and CancelSpeculation restores
  // it. Skips a parameter if a part of its state is in a tier without in-place
  // access, if its value or gradient is in a tier, or if speculative_bytes do
  // not suffice. Returns the number of updated parameters.
  absl::StatusOr<int64_t> Speculate(int64_t step, double unscale,
                                    const Event& known);
  absl::Status CancelSpeculation();
  // Executes step number `step` on all trainable elements of this rank, with
  // `matrices` for the orthogonalized parameters. Then applies `factors`, in
  // which the entries of a parameter are adjacent, to the new weights and their
  // copies. Precondition: the gradients are finished. After an error some
  // parameters may have been updated. The host waits for its downloads.
  absl::Status Step(int64_t step, const offload::StepScale& scale,
                    MatrixUpdates* matrices = nullptr,
                    std::span<const ElementScale> factors = {});

  // The whole slot of one part of a parameter's state, valid until Close; empty
  // if this rank has no slot.
  absl::StatusOr<std::span<std::byte>> Open(StatePart part, ParameterId id);
  absl::Status Close(StatePart part, ParameterId id, bool changed);

  // Flushes all changes to the tiers.
  absl::Status Settle();

 private:
  friend class MatrixShards;

  // The optimizer that is used.
  using Optimizer = std::variant<std::unique_ptr<offload::AdamW>,
                                 std::unique_ptr<offload::Sgd>,
                                 std::unique_ptr<offload::Lion>>;

  // The parameters with the same rates.
  struct Group {
    ParameterRates rates;
    Optimizer optimizer;  // Null for kAdafactor.
    // For MatrixUpdates; null without them.
    std::unique_ptr<offload::Sgd> matrices;
  };

  // A parameter that Speculate updated.
  struct Early {
    Buffer undo;              // ParameterRange::undo; allocated on first use.
    bool is_stepped = false;  // In this step.
  };

  OptimizerShard(const StateContext& context,
                 const ShardedStateOptions& options, ModelWeights& weights,
                 GradientReducer& gradients, HostCopies* host);

  // Creates the groups, which share one thread pool.
  absl::Status CreateGroups();
  absl::Status CreateGroup(const ParameterRates& rates);
  absl::Status CreateDirections();
  absl::Status CreateStore(StatePart part,
                           const std::shared_ptr<ShardPrefetch>& prefetch);
  ShardStore& StoreOf(StatePart part) const {
    return *stores_[static_cast<size_t>(part) - 1];
  }
  StateOps& ops() const { return *device_.ops; }
  // nullopt if the parameter has no such part.
  std::optional<StateFormat> FormatOf(StatePart part, ParameterId id) const {
    return StateFormatOf(context_.model()[id], options_.moment_kinds(), part);
  }
  void Announce(ParameterId id);
  absl::Status StepOne(int64_t step, const offload::StepScale& scale,
                       ParameterId id);
  // Opens the range of a parameter until CloseRange, except for the value.
  // `why` is for errors of the device.
  absl::StatusOr<offload::ParameterRange> OpenRange(ParameterId id,
                                                    std::string_view why);
  // Sets the name, offset and decay, and opens the value until CloseValue; if
  // there is a master weight, the value is the range's 16-bit copy.
  absl::StatusOr<offload::ParameterRange> OpenWeights(ParameterId id,
                                                      std::string_view why);
  absl::StatusOr<offload::MomentSpan> OpenMoment(StatePart part,
                                                 ParameterId id);
  // Applies factors of one parameter.
  absl::Status ScaleElements(std::span<const ElementScale> factors);
  absl::Status CloseRange(ParameterId id);
  absl::Status CloseValue(ParameterId id);
  Group& GroupOf(ParameterId id) { return groups_[group_of_[id]]; }
  absl::Status StepRange(ParameterId id, int64_t step,
                         const offload::StepScale& scale,
                         const offload::ParameterRange& range);
  bool MaySpeculate(ParameterId id) const;
  // Null if speculative_bytes are exhausted.
  absl::StatusOr<Buffer*> UndoOf(ParameterId id,
                                 const offload::ParameterRange& range);
  absl::Status Undo(ParameterId id);

  const StateContext context_;
  const ShardedStateOptions& options_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Group> groups_;
  ById<size_t> group_of_;  // An index in groups_.
  // The directions of Muon's and Shampoo's matrices: with learning rate 1 and
  // no decay. Null with other optimizers.
  std::unique_ptr<offload::Sgd> matrix_sgd_;
  std::unique_ptr<offload::AdamW> matrix_adamw_;  // Of Shampoo.
  ModelWeights& weights_;
  GradientReducer& gradients_;
  HostCopies* const host_;
  // The device that steps: the host, or that of `context_`.
  const StateDevice device_;
  // The trainable parameters with a slot on this rank, in the order of slots:
  // first the parameters that are updated elementwise, then those of
  // MatrixUpdates.
  std::vector<ParameterId> owned_;
  size_t elementwise_ = 0;  // The number that are updated elementwise.
  // For each of kOptimizerParts, by id.
  std::unique_ptr<ShardStore> stores_[3];
  ById<Early> early_;
  int64_t undo_bytes_ = 0;  // The size of all Early::undo.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_
