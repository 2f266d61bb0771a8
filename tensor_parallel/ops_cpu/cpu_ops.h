// CpuOps: the operations of layers on the CPU.
//
//   CpuOps ops;                       // All processors of this process.
//   CpuOps one({.threads = 1});       // With other ranks in this process.
//   CpuOps shared({.pool = pool});    // Shares the optimizer's threads.
//   TESSERA_RETURN_IF_ERROR(ops.Run(op::Gemm{{.transpose_b = true}, x, w, y}));
//
// OpenBLAS computes the products of matrices, including those of attention, and
// oneDNN those of bf16 if it is faster. All other operations use the vectors of
// the processor's best instruction set, and most of them are memory-bound. Work
// is divided among the threads of a pool, in parts that depend only on the
// shapes, so that the bits do not depend on the number of threads. An immediate
// queue executes the work in the calls; on any other queue it is enqueued
// (Queue::Launch), which an emulated device supports.
//
// Norms, activations, cross-entropy, sums and elementwise operations have the
// same bits on every instruction set. Gemm and attention (OpenBLAS) may differ.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_

#include <memory>

#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel {

struct CpuOpsOptions {
  // The number of threads of a new pool, which is used if `pool` is null. 0:
  // the processors that this process may use (AvailableProcessors of
  // base/os/processors.h, its share of the machine if its launcher has bound
  // it), divided by `ranks_in_process`; at least 1.
  int threads = 0;
  // The number of ranks that are threads of this process.
  int ranks_in_process = 1;
  std::shared_ptr<ThreadPool> pool = nullptr;  // May be shared with others.
};

// Ranks that are threads of one process compute concurrently, each with its own
// pool. Sets OpenBLAS to one thread for the whole process.
class CpuOps final : public Ops {
 public:
  // `queue` must outlive this object.
  explicit CpuOps(const CpuOpsOptions& options = {},
                  Queue& queue = HostQueue());
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
