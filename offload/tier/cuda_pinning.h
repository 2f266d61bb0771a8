// CudaPinning: page-locks a PinnedArena through the CUDA runtime, so that
// devices copy from and to it at full speed.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto arena, PinnedArena::Create({.cap = int64_t{1} << 30,
//                                        .pinning = CudaPinning()}));
//   if (!arena->pinned()) Warn(arena->pin_status());
//
// Without a toolkit or a device the arena stays usable but is not pinned.
#ifndef TESSERA_OFFLOAD_TIER_CUDA_PINNING_H_
#define TESSERA_OFFLOAD_TIER_CUDA_PINNING_H_

#include "offload/tier/pinned_arena.h"

namespace tessera::offload {

// cudaHostRegister and cudaHostUnregister, for all devices.
Pinning CudaPinning();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_CUDA_PINNING_H_
