// CpuOps: the operations of layers on the CPU.
//
//   CpuOps ops;                       // All processors of this process.
//   CpuOps one({.threads = 1});       // Beside other ranks in the process.
//   TESSERA_RETURN_IF_ERROR(ops.Gemm({.transpose_b = true}, x, w, y));
//
// Products of matrices, those of attention among them, are OpenBLAS's, on
// several threads; all else runs in one thread, in vectors of the best
// instruction set that the processor has, and most of it at the speed of
// memory. On an immediate queue work runs in the calls; on another one it is
// enqueued (Queue::Launch), which an emulated device can do. The files beside
// this one have the groups of operations.
//
// Norms, activations, cross-entropy, sums and elementwise operations have the
// same bits for every instruction set. Gemm and the attention (OpenBLAS), and
// the sines and cosines of Rotate (the C library), need not.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_

#include "base/device/device.h"
#include "base/device/host_device.h"
#include "tensor_parallel/ops/checked_ops.h"

namespace tessera::tensor_parallel {

struct CpuOpsOptions {
  // Threads of a product. 0: the processors that this process may use, which is
  // its share of the machine where its launcher has bound it (base/os/
  // processors.h), divided by the ranks in it; at least 1.
  int threads = 0;
  // Ranks that are threads of this process.
  int ranks_in_process = 1;
};

// OpenBLAS has one number of threads for the whole process, which the
// constructor sets: the last one made wins, so give all CpuOps of a process the
// same options. Ranks that are threads of one process may compute at the same
// time; with one thread each they run side by side, with more OpenBLAS lets one
// product wait for the other.
class CpuOps final : public CheckedOps {
 public:
  // `queue` outlives it.
  explicit CpuOps(const CpuOpsOptions& options = {},
                  Queue& queue = HostQueue());
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
