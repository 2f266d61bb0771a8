#include "base/tensor/tensor_view.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace tensor_view_internal {

absl::Status CheckExtent(size_t bytes, DType dtype, const Layout& layout,
                         int64_t offset) {
  if (!IsValid(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype number ", static_cast<int>(dtype),
                     " is not valid; expected 0 to ", kAllDTypes.size() - 1));
  }
  if (layout.element_count() == 0) return absl::OkStatus();
  if (layout.element_count() > INT64_MAX / SizeInBytes(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("view of shape ", DimsToString(layout.shape()), " of ",
                     DTypeName(dtype), " has more than 2^63-1 bytes"));
  }
  const int64_t room =
      static_cast<int64_t>(bytes / static_cast<size_t>(SizeInBytes(dtype)));
  int64_t first = 0, last = 0;
  const bool overflows =
      __builtin_add_overflow(offset, layout.lowest_offset(), &first) ||
      __builtin_add_overflow(offset, layout.highest_offset(), &last);
  if (!overflows && first >= 0 && last < room) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "view of shape ", DimsToString(layout.shape()), " with strides ",
      DimsToString(layout.strides()), " at element ", offset,
      " reaches outside its storage of ", bytes, " bytes, which holds ", room,
      " ", DTypeName(dtype), " elements"));
}

absl::Status CheckTyped(DType wanted, size_t alignment, DType dtype,
                        MemoryKind kind, const void* data) {
  if (dtype != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("view of ", DTypeName(dtype), " elements read as ",
                     DTypeName(wanted), "; convert it first"));
  }
  if (!IsHostAccessible(kind)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CPU cannot read ", MemoryKindName(kind),
                     " memory; transfer the tensor to the host first"));
  }
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "view's data starts ", address % alignment,
        " bytes past a multiple of ", alignment, ", the alignment of ",
        DTypeName(dtype), "; copy it to aligned memory first"));
  }
  return absl::OkStatus();
}

absl::Status CheckContiguous(const Layout& layout) {
  if (layout.IsContiguous()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("view of shape ", DimsToString(layout.shape()),
                   " with strides ", DimsToString(layout.strides()),
                   " is not contiguous; copy it to a new tensor first"));
}

}  // namespace tensor_view_internal
}  // namespace tessera
