// ReusableTensor: working memory of a layer, which grows to the largest shape
// asked for and stays.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"

namespace tessera::tensor_parallel {

class ReusableTensor {
 public:
  // Row-major, with any elements; good until the next call.
  absl::StatusOr<TensorView> Get(DType dtype, std::span<const int64_t> shape) {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::RowMajor(shape));
    const int64_t bytes = layout.element_count() * SizeInBytes(dtype);
    if (!memory_ || memory_->element_count() < bytes) {
      memory_.reset();
      TESSERA_ASSIGN_OR_RETURN(memory_, Tensor::Create(DType::kU8, {{bytes}}));
    }
    return TensorView::Create(
        {memory_->view().data(), static_cast<size_t>(bytes)}, dtype, shape);
  }

 private:
  std::optional<Tensor> memory_;  // Of bytes.
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_
