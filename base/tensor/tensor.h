// Tensor: owns the memory of a row-major tensor.
//
//   TESSERA_ASSIGN_OR_RETURN(Tensor weights,
//                            Tensor::Create(DType::kBF16, {{4096, 1024}}));
//   TESSERA_RETURN_IF_ERROR(Fill(weights.view(), 0.0f));
//
// All work on elements goes through views: base/tensor/copy.h on the host,
// queues (base/device/device.h) between kinds of memory.
#ifndef TESSERA_BASE_TENSOR_TENSOR_H_
#define TESSERA_BASE_TENSOR_TENSOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera {

// Move-only. A moved-from tensor may be assigned to and destroyed, and has no
// view.
class Tensor {
 public:
  // Allocates uninitialised elements in the memory of `resource`.
  // InvalidArgument if the dtype is not valid or the shape has a negative size
  // or too many elements; else the resource's errors.
  static absl::StatusOr<Tensor> Create(
      DType dtype, std::span<const int64_t> shape,
      std::shared_ptr<MemoryResource> resource = HostMemory());

  // All elements, row-major. Views are valid while the tensor, or one that it
  // was moved into, exists.
  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }

  DType dtype() const { return view_.dtype(); }
  const Dims& shape() const { return view_.shape(); }
  int64_t element_count() const { return view_.element_count(); }
  MemoryKind kind() const { return buffer_.kind(); }
  const Buffer& buffer() const { return buffer_; }

 private:
  Tensor(Buffer buffer, TensorView view)
      : buffer_(std::move(buffer)), view_(std::move(view)) {}

  Buffer buffer_;
  TensorView view_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_TENSOR_H_
