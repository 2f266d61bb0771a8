// Buffers: the memory beside model state that a rank needs in a step.
//
// The rule is ShardedState's, and this goes through a step of it (timeline/).
// All buffers are in device memory: that which the rank computes in. Of a
// parameter, S is the size of its slot, G that of all slots together
// (StateLayout); a window is what a layer uses at once.
//
// - Gather buffers, stage 3: G of what is live by GatherPlan, and of the next
//   window's gathers as far as LiveElementLimit has room (async_prefetch). None
//   where one rank has every parameter on the device anyway.
// - Reduce buckets. A bucket has the gradients of parameters that follow one
//   another, as many as reduce_bucket_size has room for with their padding, at
//   least one. It is direct, so that backward passes write into it, where the
//   layout is not chunks or it has one gradient.
//   Stages 0 and 1: gradients are whole for the whole step, so they are model
//   state, however many micro-batches there are. Direct buckets are reduced
//   where they lie. Others (stage 1) are copied to a bucket for as long as it
//   is on its way: two at a time with `overlap`, one without. Stages 2 and 3:
//   with a round of reductions in each micro-batch there are the bucket that is
//   filled, with `overlap` one that is on its way, and G of what the window has
//   asked for of buckets that are not direct. Accumulating micro-batches takes
//   nothing more: sums go to the shards. Where a pipeline keeps gradients until
//   the last micro-batch (holds_gradients), G of all. A rank that is alone and
//   keeps its shards on the device writes into these.
// - Prefetch buffers: host memory is used in place. What is in files, or
//   compressed, is brought to a near memory (one for each such tier) that lasts
//   from step to step: as NearBytes says for prefetch_buffer values ahead
//   (async_prefetch) and three parameters' state (`overlap`, else one), or what
//   is open at once where that is more.
//
// Not here: what tiers have for themselves (bounce buffers of direct I/O,
// scratch memory of codecs), checkpoints on their way, activations.
#ifndef TESSERA_ZERO3_ESTIMATE_BUFFERS_H_
#define TESSERA_ZERO3_ESTIMATE_BUFFERS_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "topology/rank.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/memory_use.h"
#include "zero3/estimate/state_blocks.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/use/reuse_plan.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::zero3 {

// Micro-batches of a step that are gone through; more are like these.
inline constexpr int64_t kMostRounds = 64;

// The most elements that may be live: max_live_parameters, or fewer where the
// effective device parameter budget has room for fewer (of the widest type
// gathered) beside the parameters that stay on the device, counted on the rank
// with the most. The same on every rank.
int64_t LiveElementLimit(const StateLayout& layout, const ZeroConfig& config);

// Which parameters stage 3 gathers when, under that limit and
// max_reuse_distance, in a step of gradient_accumulation_steps (at most
// kMostRounds) micro-batches; the same on every rank. Empty below stage 3 and
// where nothing needs to be gathered. InvalidArgument as PlanReuse.
// Precondition: as StateBlocksOf.
absl::StatusOr<ReusePlan> GatherPlan(const StateLayout& layout,
                                     const ZeroConfig& config,
                                     const UseOrder& order);

struct BufferRequest {
  topology::Rank rank = {};
  int64_t world = 1;    // All ranks that reduce gradients together.
  int64_t moments = 2;  // Of the optimizer.
  bool holds_gradients = false;
  UseOrder order = {};  // Of a micro-batch.
};

struct BuffersPeak {
  // At the first moment at which there is most in all.
  MemoryUse use;
  // The most that holds values of parameters, at whatever moment.
  int64_t values = 0;
};

// The buffers of a rank, whose blocks are `blocks`. Precondition: as
// StateBlocksOf; `gathers` is GatherPlan of the same order.
BuffersPeak BuffersOf(const StateLayout& layout, const ZeroConfig& config,
                      const BufferRequest& request, const ReusePlan& gathers,
                      std::span<const StateBlock> blocks);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_BUFFERS_H_
