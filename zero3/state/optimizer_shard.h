// The optimizer of a rank: its kinds, the loss scale, Muon's updates of whole
// matrices, and OptimizerShard, which keeps the state and executes the step.
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
  // MatrixUpdates updates the orthogonalized parameters (ParameterSpec), AdamW
  // all others.
  kMuon,
};

// Moments per element: two for AdamW, one for SGD with momentum and none for
// SGD without. Muon has two, except for orthogonalized parameters, which have
// one.
inline int MomentCount(OptimizerKind kind, const offload::SgdOptions& sgd) {
  if (kind != OptimizerKind::kSgd) return 2;
  return sgd.momentum == 0 ? 0 : 1;
}

// The parameters that the optimizer's weight decay applies to.
enum class DecayedParameters {
  kAll,
  // Parameters of two or more dimensions: weights of layers and embeddings, but
  // not the weights of norms and biases.
  kMatrices,
};

struct LossScaleOptions {
  bool dynamic = false;  // Otherwise the scale is constant.
  double initial = 1;
  double least = 1;
  double largest = 1 << 24;
  int64_t growth_interval = 1000;
  // The scale halves after this number of overflows without growth in between.
  int64_t hysteresis = 1;
};

// The usual `initial` of a dynamic scale, which decreases within a few steps if
// it is too large.
inline constexpr double kFirstLossScale = 65536;

// InvalidArgument if a number is not positive and finite, or if the numbers are
// inconsistent.
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
// where `update` needs the whole matrix, regardless of which ranks own its
// elements.
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

// Converts the directions of whole matrices into updates. The caller of
// ShardedState implements it, because matrices may be sharded over more ranks
// than the state's.
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
  // Ignored for f64 parameters, whose moments are f64.
  offload::MomentFormat moments = offload::MomentFormat::F32();
  offload::MemoryTier* tier = nullptr;  // Null: in memory.
  std::string key_prefix;               // Prefix of keys in the tier.
  bool overlap = true;
  // Execute the step on the host; requires a tier and a queue that is not
  // immediate.
  bool on_host = false;
  // With on_host, the memory for Speculate; 0 disables it.
  int64_t speculative_bytes = 0;
  // Prefetches blocks from tiers without in-place access. With on_host it is
  // the prefetcher of the host.
  std::shared_ptr<ShardPrefetch> prefetch;
  // Owns the queues of copies to and from the device; used with on_host.
  std::shared_ptr<ShardPrefetch> copies = {};
};

// The master weights and moments of the elements that this rank owns, and the
// optimizer's step over them.
//
//   TESSERA_RETURN_IF_ERROR(shard->Step(step, scale, gradients, values));
//
// 16-bit parameters have f32 master weights; other parameters are their own
// master weights. State in a tier is read, updated and written back parameter
// by parameter; with `overlap` reads and writes are asynchronous.
//
// on_host (ZeRO-Offload): the state stays on the host. Before the norm of the
// gradients is known, this rank's gradients are downloaded to pinned memory,
// concurrently with other work. Step updates master weights and moments in the
// tier, with the same bits as on the CPU, and uploads the new values; the next
// use of each parameter waits for its upload. Bytes between host and device for
// each element of a 16-bit parameter with gradients of g bytes, with f32 AdamW:
//
//             down    up
//   on_host   g       2
//   else      12      12
//
// A 32-bit or 64-bit parameter is its own master weight, so its value is
// downloaded too. Values and gradients in tiers are not copied. The pinned
// memory, allocated in the first step, holds a rank's gradients and values. Ren
// et al., ZeRO-Offload, arXiv 2101.06840, section 4.
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
  // InvalidArgument as for the optimizer's Create.
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
  // parameter, with `count` moments per element (MomentCount). Precondition:
  // CheckMomentFormat(moments).ok().
  static int64_t BytesOfSlot(const ModelParameter& parameter, int64_t slot,
                             const offload::MomentFormat& moments, int count);
  // True if `id` has a master weight besides its value.
  bool HasMaster(ParameterId id) const;

  // With on_host: starts to download the data that Step needs from the device:
  // the final `gradient` of a parameter and, if the parameter is its own master
  // weight, its value. Required once a step for each trainable parameter,
  // before Step; repeated calls in a step have no effect.
  absl::Status StartDownload(ParameterId id,
                             const offload::ConstTypedSpan& gradient,
                             const GradientReducer& gradients,
                             OwnValues& values);
  // Invalidates the download of a gradient that will change: StartDownload must
  // be called again. Later work of the device's queue comes after the download.
  absl::Status ForgetDownload(ParameterId id);
  // Ends a step: later work of the device's queue comes after the downloads.
  absl::Status AwaitDownloads();
  // Executes step number `step` without clipping on parameters whose downloads
  // were started, in that order, until the event `known` of the norm happens.
  // Step keeps their state if it does not clip, and CancelSpeculation restores
  // it. Skips a parameter if a part of its state is in a tier without in-place
  // access, if its value or gradient is in a tier, or if speculative_bytes do
  // not suffice. Returns the number of updated parameters.
  absl::StatusOr<int64_t> Speculate(int64_t step, double unscale,
                                    const Event& known,
                                    GradientReducer& gradients,
                                    OwnValues& values);
  absl::Status CancelSpeculation(GradientReducer& gradients, OwnValues& values);
  // Executes step number `step` on all trainable elements of this rank, with
  // `matrices` for the orthogonalized parameters. Precondition:
  // gradients.Finish() returned. After an error some parameters may have been
  // updated. With on_host the host waits for the downloads.
  absl::Status Step(int64_t step, const offload::StepScale& scale,
                    GradientReducer& gradients, OwnValues& values,
                    MatrixUpdates* matrices = nullptr);

  // The whole slot of one part of a parameter's state, valid until Close; empty
  // if this rank has no slot.
  absl::StatusOr<std::span<std::byte>> Open(OptimizerPart part, ParameterId id);
  absl::Status Close(OptimizerPart part, ParameterId id, bool changed);

  // Flushes all changes to the tiers.
  absl::Status Settle();

 private:
  friend class MatrixShards;

  static constexpr size_t kNone = ~size_t{0};

  // Pinned copies of the data of a parameter that Step needs from the device.
  struct HostCopy {
    Buffer gradient, value;
    offload::TypedSpan gradient_span;
    Event downloaded;            // Gradient and value.
    bool is_downloaded = false;  // In this step; may be in flight.
    Event uploaded;              // The last upload of the value.
    Buffer undo;              // ParameterRange::undo; allocated on first use.
    bool is_stepped = false;  // By Speculate, in this step.
  };

  // The optimizer that is used.
  using Optimizer = std::variant<std::unique_ptr<offload::AdamW>,
                                 std::unique_ptr<offload::Sgd>>;

  // The optimizers of the momentum and the weights of orthogonalized
  // parameters.
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
  // Opens the range of a parameter until CloseRange, except for the value.
  // `why` is for errors of the device.
  absl::StatusOr<offload::ParameterRange> OpenRange(ParameterId id,
                                                    std::string_view why,
                                                    GradientReducer& gradients,
                                                    OwnValues& values);
  // Sets the name, offset and decay, and opens the value; if there is a master
  // weight, the value is the range's 16-bit copy.
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
  // Null if speculative_bytes are exhausted.
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
  // Copies from the device to `target`, which is allocated on first use.
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
  // The trainable parameters with a slot on this rank, in the order of slots:
  // first the parameters that `optimizer_` updates, then the orthogonalized
  // ones.
  std::vector<ParameterId> owned_;
  size_t elementwise_ = 0;  // The number that `optimizer_` updates.
  std::unique_ptr<ShardStore> stores_[3];
  std::vector<size_t> block_of_[3];  // By id.
  const std::shared_ptr<StateOps> host_ops_;
  std::vector<HostCopy> host_copies_;  // By id.
  Event last_download_;
  std::vector<ParameterId> downloads_;  // In this step, in order.
  int64_t undo_bytes_ = 0;              // The size of all HostCopy::undo.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OPTIMIZER_SHARD_H_
