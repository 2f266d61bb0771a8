#include "base/tensor/tensor.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::StatusOr<size_t> SizeOf(DType dtype, const Layout& layout) {
  if (!IsValid(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype number ", static_cast<int>(dtype),
                     " is not valid; expected 0 to ", kAllDTypes.size() - 1));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(layout.element_count(), SizeInBytes(dtype),
                             &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor of shape ", DimsToString(layout.shape()), " of ",
                     DTypeName(dtype), " has more than 2^63-1 bytes"));
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Create(
    DType dtype, std::span<const int64_t> shape,
    std::shared_ptr<MemoryResource> resource) {
  TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
  TESSERA_ASSIGN_OR_RETURN(const size_t bytes, SizeOf(dtype, layout));
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer, Buffer::Allocate(std::move(resource), bytes),
      Annotate(_, absl::StrCat("tensor of shape ", DimsToString(shape), " of ",
                               DTypeName(dtype))));
  TESSERA_ASSIGN_OR_RETURN(
      TensorView view,
      TensorView::Create(buffer.bytes(), dtype, std::move(layout),
                         /*offset=*/0, buffer.kind()));
  return Tensor(std::move(buffer), std::move(view));
}

}  // namespace tessera
