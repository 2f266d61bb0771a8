// CpuOps: the operations of layers on the CPU.
//
//   CpuOps ops;                       // All processors of this process.
//   CpuOps one({.threads = 1});       // Beside other ranks in the process.
//   CpuOps shared({.pool = pool});    // The threads of the optimizer, too.
//   TESSERA_RETURN_IF_ERROR(ops.Run(op::Gemm{{.transpose_b = true}, x, w, y}));
//
// Products of matrices, those of attention among them, are OpenBLAS's, and of
// bf16 oneDNN's where it is faster; all else is in vectors of the best
// instruction set that the processor has, and most of it at the speed of
// memory. All of it is divided among the threads of a pool, in parts that
// depend on the shapes alone: the bits do not depend on the number of threads.
// On an immediate queue work runs in the calls; on another one it is
// enqueued (Queue::Launch), which an emulated device can do. The files beside
// this one have the groups of operations.
//
// Norms, activations, cross-entropy, sums and elementwise operations have the
// same bits for every instruction set. Gemm and the attention (OpenBLAS), and
// the sines and cosines of Rotate (the C library), need not.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_

#include <memory>

#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel {

struct CpuOpsOptions {
  // Threads of a new pool, used if `pool` is null. 0: the processors that this
  // process may use (AvailableProcessors of base/os/processors.h: its share of
  // the machine, if its launcher has bound it), divided by the ranks in it; at
  // least 1.
  int threads = 0;
  // Ranks that are threads of this process.
  int ranks_in_process = 1;
  std::shared_ptr<ThreadPool> pool = nullptr;  // May be shared with others.
};

// Ranks that are threads of one process compute side by side, each with its
// pool. Sets OpenBLAS to one thread for the whole process.
class CpuOps final : public Ops {
 public:
  // `queue` outlives it.
  explicit CpuOps(const CpuOpsOptions& options = {},
                  Queue& queue = HostQueue());
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
