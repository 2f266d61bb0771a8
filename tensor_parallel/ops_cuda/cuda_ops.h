// The operations of layers on a GPU.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, CudaDevice::Create({.ordinal = 0}));
//   TESSERA_ASSIGN_OR_RETURN(auto queue, device->CreateQueue("compute"));
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
//                            native::CreateCudaOps(*queue));
//
// `emulated` executes the same kernels on the CPU
// (base/cuda/testing/emulation.h), on any queue whose work the host can
// execute. It is far slower than CpuOps and serves to test kernels.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_OPS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel {

struct CudaOpsOptions {
  // Make equal runs give equal bits. The backward of attention then needs more
  // workspace (cudnn_attention.h).
  bool deterministic = true;
};

// `queue` must outlive the operations. Errors:
// - InvalidArgument if the queue is not a CUDA queue (native), or is one
//   (emulated), according to its native_handle()
// - Unimplemented in a build without the CUDA toolkit (native)
// - NotFound without cuBLASLt's library (native)
// - ResourceExhausted if there is no memory for workspaces
namespace native {
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(
    Queue& queue, const CudaOpsOptions& options = {});
// OK if cuDNN computes attention in bf16. Otherwise the reason why it does not;
// our own kernel, which is many times slower, then computes it. Thread-safe.
absl::Status CheckCudnn();
}  // namespace native
namespace emulated {
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(
    Queue& queue, const CudaOpsOptions& options = {});
}  // namespace emulated

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_OPS_H_
