// OptimizerShard: master weights and moments of the elements that this rank
// owns, and the optimizer's step over them.
//
//   TESSERA_RETURN_IF_ERROR(shard->Step(step, scale, gradients, values));
//
// Parameters of 16 bits have f32 master weights; others are their own. State in
// a tier is read, updated and written back parameter by parameter; with
// `overlap` reads and writes are asynchronous.
//
// on_host (ZeRO-Offload): the state does not leave the host. Before the norm of
// the gradients is known, this rank's gradients are downloaded to pinned memory
// beside other work. Step updates master weights and moments where the tier
// keeps them, with the CPU's bits, and uploads new values, which the next use
// of each parameter waits for. Bytes a parameter of 16 bits with gradients of g
// bytes, between host and device, with f32 AdamW:
//
//             down    up
//   on_host   g       2
//   else      12      12
//
// A parameter of 32 or 64 bits is its own master weight: its value is
// downloaded too. For values and gradients in tiers nothing is copied here.
// Pinned memory, allocated in the first step, holds a rank's gradients and
// values. Ren et al., ZeRO-Offload, arXiv 2101.06840, section 4.
//
// The step needs the norm of all gradients, and so begins when the backward has
// ended. With speculative_bytes the host, which has nothing else to do until
// then, steps parameters whose gradients are there as if nothing were clipped,
// and saves what it overwrites. If the norm then requires clipping, or a
// gradient is not finite, it restores that and steps again: the bits are those
// of a step that has waited. The idea is the speculation-then-validation of
// Lian et al., SuperOffload, arXiv 2509.21271.
#ifndef TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_
#define TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/sgd.h"
#include "zero3/state/gradient_reducer.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/whole_parameters.h"

namespace tessera::zero3 {

enum class OptimizerKind {
  kAdamW,  // offload/optimizer/adamw.h
  kSgd,    // offload/optimizer/sgd.h
  // Parameters that are orthogonalized (ParameterSpec) by MatrixUpdates, all
  // others by AdamW.
  kMuon,
};

// Moments per element: two for AdamW, one for SGD with momentum, otherwise
// none. With Muon two, but for orthogonalized parameters, which have one.
inline int MomentCount(OptimizerKind kind, const offload::SgdOptions& sgd) {
  if (kind != OptimizerKind::kSgd) return 2;
  return sgd.momentum == 0 ? 0 : 1;
}

// The parameters that the optimizer's weight decay applies to.
enum class DecayedParameters {
  kAll,
  // Those of two or more dimensions: weights of layers and embeddings, not the
  // weights of norms and biases.
  kMatrices,
};

struct LossScaleOptions {
  bool dynamic = false;  // Otherwise the scale is constant.
  double initial = 1;
  double least = 1;
  double largest = 1 << 24;
  int64_t growth_interval = 1000;
  // The number of overflows without growth in between until it halves.
  int64_t hysteresis = 1;
};

// The usual `initial` of a dynamic scale: it comes down in a few steps.
inline constexpr double kFirstLossScale = 65536;

// InvalidArgument if a number is not positive and finite, or out of order.
absl::Status CheckLossScale(const LossScaleOptions& options);

// The factor on the loss that keeps gradients of 16-bit types from
// underflowing. It halves when gradients overflow (those steps are skipped) and
// doubles after `growth_interval` steps without overflow. Micikevicius et al.,
// Mixed Precision Training, arXiv 1710.03740, section 3.2.
//
//   LossScaler scaler({.dynamic = true, .initial = kFirstLossScale});
//   loss * scaler.scale();
//   ...
//   scaler.Update(/*overflowed=*/!statistics.IsFinite());
class LossScaler {
 public:
  // Precondition: CheckLossScale(options).ok().
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options),
        scale_(options.initial),
        patience_(options.hysteresis) {}

  double scale() const { return scale_; }
  int64_t steps_since_change() const { return good_steps_; }

  void Update(bool overflowed);

  // Restores the state of a checkpoint; the hysteresis restarts.
  void Restore(double scale, int64_t steps_since_change) {
    scale_ = scale;
    good_steps_ = steps_since_change;
    patience_ = options_.hysteresis;
  }

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  int64_t patience_;  // Overflows left until it halves.
};

// The kinds of state that an optimizer keeps, as checkpoints name them.
enum class OptimizerPart { kMaster, kFirstMoment, kSecondMoment };
std::string_view OptimizerPartName(OptimizerPart part);
inline constexpr OptimizerPart kAllOptimizerParts[] = {
    OptimizerPart::kMaster, OptimizerPart::kFirstMoment,
    OptimizerPart::kSecondMoment};

class OptimizerShard;

// The elements of orthogonalized parameters that a rank owns, in one step of
// Muon (K. Jordan et al., "Muon: an optimizer for hidden layers", 2024; J. Liu
// et al., "Muon is scalable for LLM training", arXiv 2502.16982). With gradient
// g, momentum m and values p of a matrix:
//
//   m <- momentum * m + g
//   p <- p * (1 - learning_rate * weight_decay)
//        - learning_rate * update(g + momentum * m)
//
// where `update` needs the whole matrix, whoever owns its elements.
class MatrixShards {
 public:
  const StateLayout& layout() const;
  topology::Rank rank() const;

  // Updates the momentum of elements [begin, begin + direction.size()) of the
  // parameter, all of which this rank owns, and sets `direction`, of f64 for
  // f64 parameters and else of f32, to -(g + momentum * m). Once a step for
  // each element.
  absl::Status WriteDirection(ParameterId id, int64_t begin,
                              const offload::TypedSpan& direction);
  // p <- p * (1 - learning_rate * weight_decay) - learning_rate * update, for
  // an update of the direction's type. Once a step for each element.
  absl::Status Apply(ParameterId id, int64_t begin,
                     const offload::ConstTypedSpan& update);

 private:
  friend class OptimizerShard;

  MatrixShards(OptimizerShard& shard, int64_t step,
               const offload::StepScale& scale, GradientReducer& gradients,
               OwnValues& values)
      : shard_(shard),
        step_(step),
        scale_(scale),
        gradients_(gradients),
        values_(values) {}

  OptimizerShard& shard_;
  const int64_t step_;
  const offload::StepScale scale_;
  GradientReducer& gradients_;
  OwnValues& values_;
};

// Turns the directions of whole matrices into updates. The caller of
// ShardedState implements it, since matrices may be cut over more ranks than
// those of the state.
class MatrixUpdates {
 public:
  virtual ~MatrixUpdates() = default;

  // A collective of all ranks that hold parts of the matrices: writes each
  // direction once, then applies each update once.
  virtual absl::Status Run(MatrixShards& shards) = 0;
};

struct OptimizerShardOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  offload::AdamWOptions adamw;
  offload::SgdOptions sgd;
  double muon_momentum = 0.95;
  DecayedParameters decayed = DecayedParameters::kAll;
  // For f64 parameters always f64.
  offload::MomentFormat moments = offload::MomentFormat::F32();
  offload::MemoryTier* tier = nullptr;  // Null: in memory.
  std::string key_prefix;               // Prefix of keys in the tier.
  bool overlap = true;
  // Step on the host; needs a tier, and a queue that is not immediate.
  bool on_host = false;
  // With on_host, memory for Speculate; 0: it does nothing.
  int64_t speculative_bytes = 0;
  // Reads blocks of tiers without in-place access. With on_host, of the host.
  std::shared_ptr<ShardPrefetch> prefetch;
  // Has the queues of copies to and from the device; used with on_host.
  std::shared_ptr<ShardPrefetch> copies = {};
};

class OptimizerShard {
 public:
  // InvalidArgument as the optimizer's Create.
  static absl::StatusOr<std::unique_ptr<OptimizerShard>> Create(
      const StateContext& context, const OptimizerShardOptions& options);

  // Waits for copies between the host and the device.
  ~OptimizerShard();

  // The queue that works on the optimizer's state.
  Queue& queue() const {
    return options_.on_host ? HostQueue() : context_.queue();
  }
  absl::Status SetLearningRate(double learning_rate);
  // Moments per element of a trained parameter: 0 to 2.
  int MomentCountOf(ParameterId id) const;
  offload::MomentFormat FormatOf(ParameterId id) const;
  // Bytes of master weights and moments for `slot` elements of a trained
  // parameter, of an optimizer with MomentCount `count`. Precondition:
  // CheckMomentFormat(moments).ok().
  static int64_t BytesOfSlot(const ModelParameter& parameter, int64_t slot,
                             const offload::MomentFormat& moments, int count);
  // True if `id` has a master weight besides its value.
  bool HasMaster(ParameterId id) const;

  // With on_host: begins to download what Step needs of the device, the final
  // `gradient` of a parameter and, if it is its own master weight, its value.
  // Once a step for each trainable parameter, before Step; does nothing if it
  // was done in this step.
  absl::Status StartDownload(ParameterId id,
                             const offload::ConstTypedSpan& gradient,
                             const GradientReducer& gradients,
                             OwnValues& values);
  // The gradient will change: StartDownload must be called again. Later work of
  // the device's queue comes after the download.
  absl::Status ForgetDownload(ParameterId id);
  // Ends a step: later work of the device's queue comes after the downloads.
  absl::Status AwaitDownloads();
  // Runs step number `step` without clipping on parameters whose downloads were
  // started, in that order, until the event `known` of the norm has happened.
  // Step keeps their state if it does not clip, and CancelSpeculation restores
  // it. Leaves out those of which a part is in a tier without in-place access,
  // whose value or gradient is in a tier, and for which speculative_bytes do
  // not suffice. Returns how many were stepped.
  absl::StatusOr<int64_t> Speculate(int64_t step, double unscale,
                                    const Event& known,
                                    GradientReducer& gradients,
                                    OwnValues& values);
  absl::Status CancelSpeculation(GradientReducer& gradients, OwnValues& values);
  // Runs step number `step` on all trainable elements of this rank, with
  // `matrices` for those that are orthogonalized. Precondition:
  // gradients.Finish() returned. After an error some parameters have been
  // updated. With on_host the host waits for the downloads.
  absl::Status Step(int64_t step, const offload::StepScale& scale,
                    GradientReducer& gradients, OwnValues& values,
                    MatrixUpdates* matrices = nullptr);

  // One part of a parameter's state, the whole slot, valid until Close; empty
  // if this rank has none.
  absl::StatusOr<std::span<std::byte>> Open(OptimizerPart part, ParameterId id);
  absl::Status Close(OptimizerPart part, ParameterId id, bool changed);

  // Returns when all changes are in the tiers.
  absl::Status Settle();

 private:
  friend class MatrixShards;

  static constexpr size_t kNone = ~size_t{0};

  // What Step uses of a parameter that lies on the device; pinned.
  struct HostCopy {
    Buffer gradient, value;
    offload::TypedSpan gradient_span;
    Event downloaded;            // Both.
    bool is_downloaded = false;  // In this step; may be under way.
    Event uploaded;              // The last upload of the value.
    Buffer undo;                 // ParameterRange::undo; once it is needed.
    bool is_stepped = false;     // By Speculate, in this step.
  };

  // The optimizer that is used.
  using Optimizer = std::variant<std::unique_ptr<offload::AdamW>,
                                 std::unique_ptr<offload::Sgd>>;

  // Orthogonalized parameters: what momentum and weights are stepped with.
  struct MatrixSteps {
    std::unique_ptr<offload::Sgd> momentum, weights;
  };

  OptimizerShard(const StateContext& context,
                 const OptimizerShardOptions& options, Optimizer optimizer,
                 MatrixSteps matrix_steps)
      : context_(context),
        options_(options),
        optimizer_(std::move(optimizer)),
        matrix_steps_(std::move(matrix_steps)),
        host_ops_(HostOf(context.device).ops) {}

  static absl::StatusOr<Optimizer> CreateOptimizer(
      const OptimizerShardOptions& options);
  static absl::StatusOr<MatrixSteps> CreateMatrixSteps(
      const OptimizerShardOptions& options);
  absl::Status CreateStores();
  absl::Status CreateStore(OptimizerPart part);
  bool HasPart(OptimizerPart part, ParameterId id) const;
  absl::StatusOr<int64_t> BytesOf(OptimizerPart part, ParameterId id) const;
  DType DTypeOf(OptimizerPart part, ParameterId id) const;
  ShardStore& StoreOf(OptimizerPart part) {
    return *stores_[static_cast<size_t>(part)];
  }
  size_t BlockOf(OptimizerPart part, ParameterId id) const {
    return block_of_[static_cast<size_t>(part)]
                    [static_cast<size_t>(id.value())];
  }
  void Announce(ParameterId id, GradientReducer& gradients, OwnValues& values);
  absl::Status StepOne(int64_t step, const offload::StepScale& scale,
                       ParameterId id, GradientReducer& gradients,
                       OwnValues& values);
  // Its range, open until CloseRange, except for the value; `why` is for errors
  // of the device.
  absl::StatusOr<offload::ParameterRange> OpenRange(ParameterId id,
                                                    std::string_view why,
                                                    GradientReducer& gradients,
                                                    OwnValues& values);
  // Sets the name, place and decay, and opens the value, where there is a
  // master weight as the copy of that.
  absl::StatusOr<offload::ParameterRange> OpenWeights(ParameterId id,
                                                      std::string_view why,
                                                      OwnValues& values);
  absl::Status CloseRange(ParameterId id, GradientReducer& gradients);
  absl::Status WriteDirection(int64_t step, const offload::StepScale& scale,
                              ParameterId id, int64_t begin,
                              const offload::TypedSpan& direction,
                              GradientReducer& gradients);
  absl::Status ApplyUpdate(int64_t step, ParameterId id, int64_t begin,
                           const offload::ConstTypedSpan& update,
                           OwnValues& values);
  absl::Status StepRange(int64_t step, const offload::StepScale& scale,
                         const offload::ParameterRange& range);
  // Null without room in speculative_bytes.
  absl::StatusOr<Buffer*> UndoOf(ParameterId id,
                                 const offload::ParameterRange& range);
  bool MaySpeculate(ParameterId id, const GradientReducer& gradients,
                    const OwnValues& values) const;
  absl::Status Undo(ParameterId id, GradientReducer& gradients,
                    OwnValues& values);
  absl::StatusOr<offload::TypedSpan> OpenValue(ParameterId id,
                                               std::string_view why,
                                               OwnValues& values);
  absl::Status CloseValue(ParameterId id, OwnValues& values);
  absl::StatusOr<offload::TypedSpan> OpenGradient(ParameterId id,
                                                  GradientReducer& gradients);
  absl::Status CloseGradient(ParameterId id, GradientReducer& gradients);
  // Copies from the device to `target`, which is allocated at first.
  absl::Status Download(const offload::ConstTypedSpan& from, Buffer& target);
  absl::Status Upload(const offload::TypedSpan& to, HostCopy& from);
  StateOps& ops() const {
    return options_.on_host ? *host_ops_ : *context_.device.ops;
  }
  HostCopy& HostCopyOf(ParameterId id) {
    return host_copies_[static_cast<size_t>(id.value())];
  }
  absl::StatusOr<offload::MomentSpan> OpenMoment(OptimizerPart part,
                                                 ParameterId id);

  const StateContext context_;
  const OptimizerShardOptions options_;
  const Optimizer optimizer_;
  const MatrixSteps matrix_steps_;  // Null unless kMuon.
  // Trainable, with a slot here; by slot. Those that `optimizer_` steps, and
  // then the orthogonalized ones.
  std::vector<ParameterId> owned_;
  size_t elementwise_ = 0;  // How many are stepped by `optimizer_`.
  std::unique_ptr<ShardStore> stores_[3];
  std::vector<size_t> block_of_[3];  // By id.
  const std::shared_ptr<StateOps> host_ops_;
  std::vector<HostCopy> host_copies_;  // By id.
  Event last_download_;
  std::vector<ParameterId> downloads_;  // Of this step, as they were started.
  int64_t undo_bytes_ = 0;              // Of all HostCopy::undo.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_
