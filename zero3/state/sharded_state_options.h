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
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/state/moment.h"
#include "offload/tier/memory_tier.h"
#include "zero3/layout/layout_options.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/shards/state_device.h"
#include "zero3/state/step/loss_scaler.h"
#include "zero3/state/step/optimizer_kind.h"

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
  // Slots are a multiple of this many elements; of a block of the moments in
  // any case.
  int64_t alignment = 1;
  // Stage 3: parameters with fewer elements stay whole on every rank.
  int64_t persistence_threshold = 0;

  // The type of gradients in memory, on their way and in shards, for parameters
  // of 16 bits; others have their own type.
  DType gradient_dtype = DType::kF32;
  int64_t bucket_bytes = 25'000'000;
  bool average_gradients = false;  // Over shard and replica ranks; else sums.
  // Parameters whose gradients no rank reduced in a step have gradients of
  // zeros.
  bool allow_unused = false;
  // Reductions, and reads and writes of tiers, go on beside the caller's work,
  // for the gradients of a second window and two more parameters' state in
  // buffers.
  bool overlap = true;

  OptimizerKind optimizer = OptimizerKind::kAdamW;
  offload::AdamWOptions adamw = {};  // Where that is the optimizer.
  offload::SgdOptions sgd = {};      // Likewise.
  offload::MomentFormat moments = offload::MomentFormat::F32();
  double clip_norm = 0;  // 0: gradients are not clipped.
  LossScaleOptions loss_scale = {};
  // By id, the elements that this rank counts in the norm; what it leaves out
  // another rank of the model group counts, having the same. Empty: all.
  std::vector<std::vector<ElementRange>> counted_in_norm = {};

  // Where shards live; null: in this rank's memory. Parameters: stage 3 only;
  // gradients: 2 and 3. A tier outlives the state. Master weights and moments,
  // and so parameters of 32 and 64 bits, which are their own master weights,
  // need tiers that are lossless for them (MemoryTier::IsLossless): a second
  // moment that a codec rounds to 0 divides by epsilon alone. Values of 16 bits
  // and gradients may be rounded.
  offload::MemoryTier* parameter_tier = nullptr;
  offload::MemoryTier* gradient_tier = nullptr;
  offload::MemoryTier* optimizer_tier = nullptr;
  // Where there is one: what goes to the tiers above has `tier_budget` bytes
  // there, values first, then gradients, master weights and moments, and what
  // does not fit goes here.
  offload::MemoryTier* far_tier = nullptr;
  int64_t tier_budget = std::numeric_limits<int64_t>::max();
  // Of blocks in tiers: ranks that share a tier need different ones.
  std::string key_prefix = "";
  // What this rank's own memory counts against; null: without a limit.
  std::shared_ptr<offload::Accounting> device = nullptr;
  // Who gives it out, and who works on it; null: HostMemory, HostStateOps.
  std::shared_ptr<MemoryResource> memory = nullptr;
  std::shared_ptr<StateOps> ops = nullptr;
};

// InvalidArgument that names the option, what it is and what it may be.
absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDED_STATE_OPTIONS_H_
