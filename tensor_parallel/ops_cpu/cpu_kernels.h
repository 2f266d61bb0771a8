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

#include <memory>

#include "base/device/operation_queue.h"
#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

// The state that the kernels of one queue share.
struct CpuBackend {
  std::shared_ptr<ThreadPool> pool;
};

using CpuKernelTable = KernelTable<CpuBackend, LayerOperations>;

// The kernels of all operations.
const CpuKernelTable& Kernels();

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_
