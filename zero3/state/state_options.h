// ShardedStateOptions: the options of a sharded state and of its parts.
#ifndef TESSERA_ZERO3_STATE_STATE_OPTIONS_H_
#define TESSERA_ZERO3_STATE_STATE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "offload/codec/codec.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/lion.h"
#include "offload/optimizer/sgd.h"
#include "offload/tier/memory_tier.h"
#include "zero3/layout/state_format.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/parameter_groups.h"
#include "zero3/state/loss_scaler.h"
#include "zero3/state/state_operations.h"

namespace tessera::zero3 {

enum class OptimizerKind {
  kAdamW,  // offload/optimizer/adamw.h
  kSgd,    // offload/optimizer/sgd.h
  kLion,   // offload/optimizer/lion.h
  // MatrixUpdates updates the orthogonalized parameters (ParameterSpec), AdamW
  // all others.
  kMuon,
  // MatrixUpdates updates all parameters, whose second moments are frozen
  // parameters of the model.
  kAdafactor,
  // MatrixUpdates updates the preconditioned parameters, AdamW all others.
  kShampoo,
};

// As in torch.optim.Adafactor. Epsilon1 is that of the moments' type.
struct AdafactorNumbers {
  double beta2_decay = -0.8;  // beta2 of step t is 1 - t^beta2_decay.
  double epsilon2 = 1e-3;     // The least RMS of weights for the step's size.
  double threshold = 1;       // The largest RMS of an update.
};

struct ShampooNumbers {
  int64_t block = 1024;   // Rows and columns of a block, at most.
  int64_t every = 10;     // Steps from one set of inverse roots to the next.
  double epsilon = 1e-6;  // Added to statistics of norm 1.
};

// The parameters that the optimizer's weight decay applies to.
enum class DecayedParameters {
  kAll,
  // Parameters of two or more dimensions: weights of layers and embeddings, but
  // not the weights of norms and biases.
  kMatrices,
};

// Elements [begin, end) of a parameter.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

struct ShardedStateOptions {
  int stage = 3;
  LayoutKind layout = LayoutKind::kChunks;
  // Slots are multiples of this number of elements and of the block sizes of
  // the moments and, with frozen_codec, of NF4.
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
  // With overlap: the number of parameters whose shards are read from a tier
  // ahead of their gathers, which near memory has room for. 0: tiers are read
  // when the state is used.
  int64_t prefetch = 16;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  offload::AdamWOptions adamw = {};  // For kAdamW.
  offload::SgdOptions sgd = {};      // For kSgd.
  offload::LionOptions lion = {};    // For kLion.
  // For kMuon. The learning rate, weight decay and threads are those of
  // `adamw`, which also updates the parameters that are not orthogonalized.
  double muon_momentum = 0.95;
  // For kAdafactor. The learning rate, weight decay and threads are those of
  // `adamw`.
  AdafactorNumbers adafactor = {};
  // For kShampoo, as well as `adamw`. By id, the parameters that MatrixUpdates
  // updates: trained matrices.
  ShampooNumbers shampoo = {};
  std::vector<bool> preconditioned = {};
  DecayedParameters decayed = DecayedParameters::kAll;
  // Parameters with other rates than those of the optimizer's options.
  std::vector<ParameterGroup> parameter_groups = {};
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
  // Stage 3: the codec ("nf4" or "nf4_double") of the frozen parameters that
  // `is_encoded` marks by id. This rank's memory holds their encodings, instead
  // of parameter_tier, and the device decodes them for each use. Values of any
  // type are rounded, as they are never updated. Must outlive the state. Null:
  // is_encoded has no effect.
  const offload::Codec* frozen_codec = nullptr;
  std::vector<bool> is_encoded = {};
  // ZeRO-Offload: the host executes the optimizer's step on the state in
  // optimizer_tier (zero3/state/optimizer_shard.h). Otherwise the state is
  // copied to the device, updated there and copied back. No effect on an
  // immediate queue, where the host executes the step anyway. Default: true if
  // there is an optimizer_tier and no MatrixUpdates, for which the device
  // steps.
  std::optional<bool> optimizer_on_host = {};
  // If the host executes the step: memory for speculative updates, which start
  // before the gradient norm is known and are undone if it requires clipping or
  // skipping. The size of the state in optimizer_tier suffices for all
  // parameters. 0: no speculation.
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

  Queue& queue_or_host() const {
    return queue == nullptr ? HostQueue() : *queue;
  }
  // The tier of a parameter's values; null: this rank's memory.
  offload::MemoryTier* ParameterTierOf(ParameterId id) const {
    return IsEncoded(id) ? nullptr : parameter_tier;
  }
  bool IsEncoded(ParameterId id) const {
    return frozen_codec != nullptr && is_encoded[IndexOf(id)];
  }
  DType GradientTypeOf(const ModelParameter& parameter) const {
    return SizeInBytes(parameter.dtype()) < 4 ? gradient_dtype
                                              : parameter.dtype();
  }
  // The moments of a trained element; SGD without momentum and Adafactor have
  // none.
  MomentKinds moment_kinds() const {
    const int of_sgd = sgd.momentum == 0 ? 0 : 1;
    return {moments, optimizer == OptimizerKind::kSgd         ? of_sgd
                     : optimizer == OptimizerKind::kLion      ? 1
                     : optimizer == OptimizerKind::kAdafactor ? 0
                                                              : 2};
  }
  // True if a step needs MatrixUpdates.
  bool UpdatesMatrices() const {
    return optimizer == OptimizerKind::kMuon ||
           optimizer == OptimizerKind::kAdafactor ||
           optimizer == OptimizerKind::kShampoo;
  }
  bool IsPreconditioned(ParameterId id) const {
    return optimizer == OptimizerKind::kShampoo && preconditioned[IndexOf(id)];
  }
  // True if the host executes the optimizer's step.
  bool StepsOnHost() const {
    return optimizer_tier != nullptr && !queue_or_host().is_immediate() &&
           !UpdatesMatrices() && optimizer_on_host.value_or(true);
  }
};

// OK if the options are valid for `model`. Otherwise InvalidArgument, which
// names the option, its value and the allowed values.
absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_OPTIONS_H_
