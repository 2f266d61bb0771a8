// The kernels of operations on the CPU.
//
// Elementwise operations, norms, activations, cross-entropy and row tables are
// memory-bound (compute-bound if vectors are narrow): each reads and writes
// every element once, in parts that are divided among the threads of the pool,
// and computes sums in the type of statistics. AddRows sorts the ids (stably,
// with 8 bytes per id), so that each row of the table is read, summed and
// rounded once. Gemm and attention are in gemm.h and attention.h.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/device/operation_queue.h"
#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/rotary.h"

namespace tessera::tensor_parallel::cpu {

// Caches the sines and cosines of the last call: two values of the type of
// statistics per token and pair. Recomputes them, in f64, only if the rotation,
// the type or the positions change.
class RotaryTable {
 public:
  // For each token, the cosines and then the sines of all pairs, times the
  // factor. S is float or double.
  template <typename S>
  const S* Get(const Rotation& rotation, std::span<const int64_t> positions);

 private:
  Rotation rotation_;
  std::vector<int64_t> positions_;
  std::vector<float> f32_;  // One of the two is in use.
  std::vector<double> f64_;
};

// The state that the kernels of one queue share.
struct CpuBackend {
  std::shared_ptr<ThreadPool> pool;
  RotaryTable rotary = {};
};

using CpuKernelTable = KernelTable<CpuBackend, LayerOperations>;

// The kernels of all operations.
const CpuKernelTable& Kernels();

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_
