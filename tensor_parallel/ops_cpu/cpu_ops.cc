#include "tensor_parallel/ops_cpu/cpu_ops.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/device/device.h"
#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "tensor_parallel/ops_cpu/cpu_kernels.h"
#include "tensor_parallel/ops_cpu/gemm.h"

namespace tessera::tensor_parallel {
namespace {

int ThreadsOf(const CpuOpsOptions& options) {
  if (options.threads > 0) return options.threads;
  const int64_t ranks = std::max(options.ranks_in_process, 1);
  return static_cast<int>(std::max<int64_t>(AvailableProcessors() / ranks, 1));
}

}  // namespace

CpuOps::CpuOps(const CpuOpsOptions& options, Queue& queue)
    : Ops(queue, cpu::Kernels(),
          std::make_shared<cpu::CpuBackend>(cpu::CpuBackend{
              ThreadPool::OrNew(options.pool, ThreadsOf(options))})) {
  cpu::UseOneBlasThread();
}

}  // namespace tessera::tensor_parallel
