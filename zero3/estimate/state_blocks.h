// State blocks: every piece of model state that a rank holds, and its tier.
//
//   for (const StateBlock& block : StateBlocksOf(layout, config, adamw, rank))
//   {
//     allocate block.bytes in block.tier;
//   }
//
// This is the rule that a runtime follows, so that its accounting equals the
// estimate to the byte. For a parameter of E elements of s bytes, with a slot
// of S elements on this rank and G gathered (StateLayout), there is one block
// for each line that applies:
//
//   value     stage < 3, or small     G * s   device
//             stage 3                 S * s   offload_parameters
//   gradient  stage < 2               G * g   device
//             stage >= 2              S * g   offload_gradients
//   master    s < 4                   S * 4   offload_optimizer
//   moments   not f64                 MomentBytes(S)   offload_optimizer
//             f64                     S * 8 for each   offload_optimizer
//
// All but the first only where the parameter is trained; g is s, or with
// gradient_type fp32 at least 4. What is offloaded goes to the host as long as
// it fits into the effective host budget together with what went before, and to
// files otherwise; without a swap_directory to the host in any case. Values
// come first in that, then gradients, master weights and moments, each in the
// order of their slots.
#ifndef TESSERA_ZERO3_ESTIMATE_STATE_BLOCKS_H_
#define TESSERA_ZERO3_ESTIMATE_STATE_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "topology/rank.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/memory_use.h"
#include "zero3/estimate/optimizer_state.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

struct StateBlock {
  Purpose purpose;
  ParameterId parameter;
  Tier tier;
  int64_t bytes;

  friend bool operator==(const StateBlock&, const StateBlock&) = default;
};

// Bytes of an element of the parameter's gradient as it is kept and reduced.
int64_t GradientBytes(const Parameter& parameter, const ZeroConfig& config);

// Whether the optimizer keeps a float32 value beside the parameter's own.
bool HasMasterWeights(const Parameter& parameter);

// In the order above; without blocks of 0 bytes. Preconditions: the layout is
// of config.MakeLayoutOptions, has the rank, and the configuration is valid.
std::vector<StateBlock> StateBlocksOf(const StateLayout& layout,
                                      const ZeroConfig& config,
                                      const OptimizerState& optimizer,
                                      topology::Rank rank);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_STATE_BLOCKS_H_
