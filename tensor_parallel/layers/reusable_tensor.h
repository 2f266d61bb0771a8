// ReusableTensor: working memory of a layer, which grows to the largest shape
// asked for and stays.
//
//   ReusableTensor all_tokens(group.memory());
//   TESSERA_ASSIGN_OR_RETURN(TensorView x, all_tokens.Get(dtype, shape));
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

class ReusableTensor {
 public:
  explicit ReusableTensor(std::shared_ptr<MemoryResource> memory)
      : memory_(std::move(memory)) {}

  // Row-major, with any elements; good until the next call.
  absl::StatusOr<TensorView> Get(DType dtype, std::span<const int64_t> shape) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
    const auto bytes =
        static_cast<size_t>(layout.element_count() * SizeInBytes(dtype));
    if (buffer_.size() < bytes) {
      buffer_ = Buffer();
      TESSERA_ASSIGN_OR_RETURN(buffer_, Buffer::Allocate(memory_, bytes));
    }
    return TensorView::Create(buffer_.bytes().first(bytes), dtype,
                              std::move(layout), /*offset=*/0, buffer_.kind());
  }

 private:
  std::shared_ptr<MemoryResource> memory_;
  Buffer buffer_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_REUSABLE_TENSOR_H_
