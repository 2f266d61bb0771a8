// The kernels of collectives on device memory: LaunchFold and LaunchMoves.
//
//   native::LaunchFold(queue.native_handle(), fold);
//
// Memory-bound: each source is read once and each target written once, 16 bytes
// at a time if all addresses are multiples of 16.
#ifndef TESSERA_COLLECTIVES_CUDA_COLLECTIVE_KERNELS_H_
#define TESSERA_COLLECTIVES_CUDA_COLLECTIVE_KERNELS_H_

#include "base/cuda/stream.h"
#include "collectives/cuda/kernel_arguments.h"

namespace tessera::collectives::TESSERA_KERNELS {

void LaunchFold(KernelStream stream, const FoldJob& fold);
void LaunchMoves(KernelStream stream, const Moves& moves);

}  // namespace tessera::collectives::TESSERA_KERNELS

#endif  // TESSERA_COLLECTIVES_CUDA_COLLECTIVE_KERNELS_H_
