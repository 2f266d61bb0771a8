// Buffers: the memory beside model state that a rank needs in a step.
//
// This is the rule that a runtime follows. In elements of a parameter: S of its
// slot, G gathered (StateLayout); each buffer is allocated at its largest.
//
// - Gather buffers, device, stage 3: the most bytes that are live at a time by
//   GatherPlan. None where one rank has every parameter on the device anyway.
// - Reduce buckets, device, from stage 2 on, where gradients leave the rank or
//   the device: backward writes a gradient (G elements) straight into its
//   bucket. A bucket has reduce_bucket_size bytes, but at least the largest
//   gradient and at most all. With `overlap` there are two, unless one holds
//   all.
// - Prefetch buffers, device, stage 3 with offload_parameters: the slots of the
//   next k gathers, at the place where these are largest; k is prefetch_buffer,
//   or 1 without async_prefetch.
// - Prefetch buffers, host: the same for those of the slots that are in files;
//   and for the optimizer's step the gradient, master weights and moments of
//   the parameter with the most of them in files, twice with `overlap`.
//
// Stages 0 and 1 reduce gradients in place. Stages below 3 use parameters where
// they are.
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

// The most elements that may be live: max_live_parameters, or fewer where the
// effective device parameter budget has room for fewer (of the widest type
// gathered) beside the parameters that stay on the device, counted on the rank
// with the most. The same on every rank.
int64_t LiveElementLimit(const StateLayout& layout, const ZeroConfig& config);

// Which parameters stage 3 gathers when, under that limit and
// max_reuse_distance; the same on every rank. Empty below stage 3 and where
// nothing needs to be gathered. InvalidArgument as PlanReuse. Precondition: as
// StateBlocksOf.
absl::StatusOr<ReusePlan> GatherPlan(const StateLayout& layout,
                                     const ZeroConfig& config,
                                     const UseOrder& order);

// The buffers of a rank; `world` counts all ranks that reduce gradients
// together, `blocks` are the rank's. Precondition: as StateBlocksOf.
MemoryUse BuffersOf(const StateLayout& layout, const ZeroConfig& config,
                    int64_t world, const ReusePlan& gathers,
                    std::span<const StateBlock> blocks);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_BUFFERS_H_
