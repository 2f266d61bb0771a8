// GatherOperation: the all-gather of a parameter's shards.
#ifndef TESSERA_ZERO3_STATE_GATHER_OPERATION_H_
#define TESSERA_ZERO3_STATE_GATHER_OPERATION_H_

#include <cstddef>
#include <span>

#include "collectives/operation/operation.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

// `own` is this rank's slot. `whole` has layout.GatheredElements(id) elements:
// the parameter's, then padding. `own` may be the rank's slot in `whole`.
collectives::Operation GatherOperation(const StateLayout& layout,
                                       ParameterId id,
                                       std::span<const std::byte> own,
                                       std::span<std::byte> whole);

// The slot of `rank` in the gathered buffer.
std::span<std::byte> SlotIn(const StateLayout& layout, ParameterId id,
                            topology::Rank rank, std::span<std::byte> whole);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GATHER_OPERATION_H_
