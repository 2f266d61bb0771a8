// ShardedStateOptions: how ShardedState partitions, moves and steps.
#ifndef TESSERA_ZERO3_STATE_SHARDED_STATE_OPTIONS_H_
#define TESSERA_ZERO3_STATE_SHARDED_STATE_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/moment.h"
#include "offload/optimizer/sgd.h"
#include "offload/tier/memory_tier.h"
#include "zero3/layout/layout_options.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/loss_scaler.h"
#include "zero3/state/optimizer_kind.h"
#include "zero3/state/state_device.h"

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
  // Slots are multiples of this many elements, and of a block of the moments.
  int64_t alignment = 1;
  // Stage 3: parameters with fewer elements stay whole on every rank.
  int64_t persistence_threshold = 0;

  // The type of gradients in memory, in messages and in shards, for parameters
  // of 16 bits; gradients of others have the parameter's type.
  DType gradient_dtype = DType::kF32;
  int64_t bucket_bytes = 25'000'000;
  // Average over shard and replica ranks; otherwise sum.
  bool average_gradients = false;
  // Treat the gradients that no rank reduced in a step as zeros.
  bool allow_unused = false;
  // ZeRO++ (zero3/state). qgZ: reduce gradients as int8 blocks; needs
  // stage 1 or more. qwZ, stage 3: gather weights as int8 blocks. hpZ, stage 3:
  // this many neighbouring ranks of the shard group keep a second copy of
  // gathered weights until the step ends; 0: no second copy.
  bool quantized_gradients = false;
  bool quantized_weights = false;
  int64_t hpz_partition_size = 0;
  // Overlap reductions and reads of tiers with the caller's work. Costs memory
  // for the gradients of a second window, and near memory for the state of two
  // more parameters.
  bool overlap = true;
  // Near memory for the shards of each tier without in-place access; grows if
  // the shards in use at once need more. 0: chosen from the sizes of the
  // shards.
  int64_t near_bytes = 0;

  OptimizerKind optimizer = OptimizerKind::kAdamW;
  offload::AdamWOptions adamw = {};  // For kAdamW.
  offload::SgdOptions sgd = {};      // For kSgd.
  offload::MomentFormat moments = offload::MomentFormat::F32();
  double clip_norm = 0;  // 0: gradients are not clipped.
  LossScaleOptions loss_scale = {};
  // By id, the elements that this rank counts in the gradient norm; another
  // rank of the model group, which holds the same elements, counts the others.
  // Empty: all.
  std::vector<std::vector<ElementRange>> counted_in_norm = {};

  // The tiers of the shards; null: this rank's memory. Parameter tiers need
  // stage 3, gradient tiers stage 2 or 3. A tier must outlive the state. Master
  // weights and moments, and so parameters of 32 and 64 bits, which are their
  // own master weights, need lossless tiers (MemoryTier::IsLossless): if a
  // codec rounded a second moment to 0, AdamW would divide by epsilon alone.
  // Values of 16 bits and gradients may be rounded.
  offload::MemoryTier* parameter_tier = nullptr;
  offload::MemoryTier* gradient_tier = nullptr;
  offload::MemoryTier* optimizer_tier = nullptr;
  // If set, the tiers above get at most `tier_budget` bytes (values first, then
  // gradients, master weights, moments), and the rest goes to `far_tier`.
  offload::MemoryTier* far_tier = nullptr;
  int64_t tier_budget = std::numeric_limits<int64_t>::max();
  // Prefix of keys in tiers. Ranks that share a tier need different ones.
  std::string key_prefix = "";
  // The budget of this rank's own memory; null: unlimited.
  std::shared_ptr<offload::Accounting> device = nullptr;
  // Its resource, and the operations on it; null: HostMemory, HostStateOps.
  std::shared_ptr<MemoryResource> memory = nullptr;
  std::shared_ptr<StateOps> ops = nullptr;
};

// InvalidArgument that names the option, its value and the allowed values.
absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDED_STATE_OPTIONS_H_
