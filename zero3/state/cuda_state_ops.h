// CudaStateOps: the operations on model state as CUDA kernels, on the GPU
// (`native`) or emulated on the CPU (`emulated`), from one source.
//
//   TESSERA_ASSIGN_OR_RETURN(options.ops, native::CudaStateOps(*queue));
//
// All results have the same bits as HostStateOps. AdamW moves 30 bytes per
// parameter with f32 gradients, moments and master weights and a bf16 copy;
// statistics read each gradient once.
//
// The operations allocate 16 bytes of device memory for every 4096 elements of
// the largest gradient, which do not count against a budget.
#ifndef TESSERA_ZERO3_STATE_CUDA_STATE_OPS_H_
#define TESSERA_ZERO3_STATE_CUDA_STATE_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

namespace native {
// `queue` belongs to a CUDA device and must outlive the operations.
// InvalidArgument if it has no native handle; Unimplemented if built without
// the CUDA toolkit.
absl::StatusOr<std::shared_ptr<StateOps>> CudaStateOps(Queue& queue);
}  // namespace native

namespace emulated {
// The same for a queue whose work the host executes: that of a HostDevice or an
// EmulatedDevice. InvalidArgument if it has a native handle.
absl::StatusOr<std::shared_ptr<StateOps>> CudaStateOps(Queue& queue);
}  // namespace emulated

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_CUDA_STATE_OPS_H_
