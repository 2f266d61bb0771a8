// Transfer: tensors from one kind of memory to another.
//
//   TESSERA_ASSIGN_OR_RETURN(auto memory, CudaDeviceMemory(0));
//   TESSERA_ASSIGN_OR_RETURN(Tensor on_device, Transfer(host.view(), memory));
//
// Returns when the copy is complete. Between host memories this is Copy; with a
// device it runs through the CUDA runtime, after the work already given to the
// default streams and not after that of others.
#ifndef TESSERA_BASE_DEVICE_TRANSFER_H_
#define TESSERA_BASE_DEVICE_TRANSFER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"

namespace tessera {

// target[i] = source[i] for every index. The device side must be contiguous,
// else Unimplemented; strides on the host cost a temporary there. Errors, with
// nothing written, as Copy; with a device also as CudaCopyBytes.
absl::Status Transfer(ConstTensorView source, TensorView target);

// A new row-major tensor of the same elements in the memory of `resource`.
absl::StatusOr<Tensor> Transfer(ConstTensorView source,
                                std::shared_ptr<MemoryResource> resource);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TRANSFER_H_
