// FoldJob and Moves: the arguments of the kernels of collectives.
#ifndef TESSERA_COLLECTIVES_CUDA_KERNEL_ARGUMENTS_H_
#define TESSERA_COLLECTIVES_CUDA_KERNEL_ARGUMENTS_H_

#include <array>
#include <cstdint>

#include "base/dtype/dtype.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

// The arguments of a kernel fit into 4 KiB.
inline constexpr int kMostDeviceRanks = 64;
inline constexpr int kMostMoves = 32;

// targets[k][i] = sources[0][i] op sources[1][i] op ..., from left to right,
// for every k, with the meaning and the bits of Combine
// (collectives/reduction/combine.h). A target may be one of the sources.
struct FoldJob {
  std::array<const void*, kMostDeviceRanks> sources = {};
  std::array<void*, kMostDeviceRanks> targets = {};
  int source_count = 0;
  int target_count = 0;
  int64_t count = 0;  // Elements.
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;  // kAverage and kScaledSum are sums.
  double scale = 1.0;            // First multiplies every element.
  int64_t divisor = 1;           // Finally divides the result.
};

// Copies `bytes` bytes, and `back_bytes` bytes of a second range. Each position
// of both ranges is read before it is written, so two equal ranges can be
// swapped.
struct Move {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t bytes = 0;
  const void* back_from = nullptr;
  void* back_to = nullptr;
  int64_t back_bytes = 0;
};

// Moves in any order, or at the same time.
struct Moves {
  std::array<Move, kMostMoves> moves = {};
  int count = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CUDA_KERNEL_ARGUMENTS_H_
