// EstimateMemory: the bytes that a rank needs, by tier and purpose, before
// anything is allocated.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const MemoryModel memory,
//       MemoryModel::Create(model, config, {.ranks = 8}));
//   memory.Estimate(Rank(0))->ToString();
//   TESSERA_RETURN_IF_ERROR(memory.CheckFits());
//
// In exact integers, padding included. Which blocks and buffers there are is
// stated in state_blocks.h and buffers.h. At stage 3 with 16-bit parameters,
// AdamW and no padding, the model state of P parameters on N ranks is 16 P / N
// bytes: 2 for the copy, 2 for the gradient, 4 for the master weight and 8 for
// the moments ("ZeRO", arXiv 1910.02054, section 3). What is said of device
// memory is what ShardedState's accounting then shows as its peak: model state
// by purpose, and with buffers in all, to the byte.
//
// The model is the part that a data-parallel group has, already divided by
// tensor and pipeline parallelism. With compression the offloaded state takes
// less than estimated.
#ifndef TESSERA_ZERO3_ESTIMATE_ESTIMATE_MEMORY_H_
#define TESSERA_ZERO3_ESTIMATE_ESTIMATE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/rank.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/memory_use.h"
#include "zero3/estimate/optimizer_state.h"
#include "zero3/estimate/state_blocks.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/use/reuse_plan.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::zero3 {

struct MemoryRequest {
  // Ranks that share one copy of the state, and how many such groups there are
  // (hybrid sharding): together the data-parallel ranks.
  int64_t ranks = 1;
  int64_t replicas = 1;
  OptimizerState optimizer = {};
  // The order in which the passes of one micro-batch use the parameters;
  // ForwardBackward if not given. A gradient is asked for and made ready in the
  // window of its parameter's last use.
  std::optional<UseOrder> order = std::nullopt;
  // Gradients are all asked for before the first micro-batch and made ready
  // after the last one, as pipelines do.
  bool holds_gradients = false;
};

// A value; methods may be called from any thread.
class MemoryModel {
 public:
  // InvalidArgument where the configuration is not valid, a degree is
  // outside 1 to 2^20 ranks or 2^40 replicas, the optimizer's state is not as
  // OptimizerState says, blocks of 8-bit moments would be cut since their size
  // does not divide the alignment, or the layout or the order is refused.
  static absl::StatusOr<MemoryModel> Create(const ModelParameters& model,
                                            const ZeroConfig& config,
                                            const MemoryRequest& request);

  // Of the sharded state; of one rank at stage 0.
  const StateLayout& layout() const { return layout_; }
  // What stage 3 gathers in a step (of kMostRounds micro-batches at most).
  const ReusePlan& gathers() const { return gathers_; }

  // The peak of a rank of the shard group: its state, and the buffers at the
  // moment at which there are most; and its state in blocks. InvalidArgument
  // where there is no such rank.
  absl::StatusOr<MemoryUse> Estimate(topology::Rank rank) const;
  absl::StatusOr<std::vector<StateBlock>> Blocks(topology::Rank rank) const;

  // OK, or ResourceExhausted where on some rank the host needs more than
  // cpu_budget, or the parameters on the device with their gather and prefetch
  // buffers more than device_parameter_budget. The first such rank is named,
  // with what is needed and what helps.
  absl::Status CheckFits() const;

 private:
  MemoryModel(StateLayout layout, ZeroConfig config, MemoryRequest request,
              ReusePlan gathers);

  absl::Status CheckRank(topology::Rank rank) const;
  // Where a rank of the group finds itself in the layout.
  topology::Rank LayoutRank(topology::Rank rank) const;
  struct Estimated {
    MemoryUse use;
    // On the device: kept, gathered and on their way, at their most.
    int64_t values = 0;
  };
  Estimated EstimateAt(topology::Rank layout_rank) const;
  UseOrder Order() const;

  StateLayout layout_;
  ZeroConfig config_;
  MemoryRequest request_;
  ReusePlan gathers_;
};

// The same in one call.
absl::StatusOr<MemoryUse> EstimateMemory(
    const ModelParameters& model, const ZeroConfig& config,
    const MemoryRequest& request, topology::Rank rank = topology::Rank(0));

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_ESTIMATE_MEMORY_H_
