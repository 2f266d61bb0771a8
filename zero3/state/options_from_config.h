// OptionsFrom: what a ZeroConfig asks of ShardedState.
#ifndef TESSERA_ZERO3_STATE_OPTIONS_FROM_CONFIG_H_
#define TESSERA_ZERO3_STATE_OPTIONS_FROM_CONFIG_H_

#include "absl/status/statusor.h"
#include "offload/tier/memory_tier.h"
#include "zero3/config/zero_config.h"
#include "zero3/state/sharded_state_options.h"

namespace tessera::zero3 {

// What is to be offloaded goes to `tier`: null where nothing is. With `files`
// it has the effective host budget there, and the rest goes to `files`; both
// outlive the state. The optimizer and its moments keep their defaults;
// gradient_accumulation_steps is the caller's. InvalidArgument where the
// configuration is not valid, or offloads with no tier.
absl::StatusOr<ShardedStateOptions> OptionsFrom(
    const ZeroConfig& config, DType parameter_dtype, offload::MemoryTier* tier,
    offload::MemoryTier* files = nullptr);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OPTIONS_FROM_CONFIG_H_
