// TypedSpan and ConstTypedSpan: contiguous elements of a DType that is known at
// run time.
//
//   std::vector<BF16> gradient(n);
//   ConstTypedSpan g = std::span<const BF16>(gradient);
//   TESSERA_ASSIGN_OR_RETURN(TypedSpan p, TypedSpan::Of(tensor.view()));
//
// Somebody else's memory, which must outlive the span.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TYPED_SPAN_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TYPED_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera::offload {

// `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicTypedSpan {
 public:
  BasicTypedSpan() = default;
  // No check: `data` holds `size` elements of `dtype`.
  BasicTypedSpan(Byte* data, DType dtype, int64_t size)
      : data_(data), dtype_(dtype), size_(size) {}
  template <typename T>
  requires DTypeElement<std::remove_const_t<T>> &&(std::is_const_v<Byte> ||
                                                   !std::is_const_v<T>)
      BasicTypedSpan(std::span<T> elements)  // NOLINT: as std::span converts.
      : data_(reinterpret_cast<Byte*>(elements.data())),
        dtype_(kDTypeOf<std::remove_const_t<T>>),
        size_(static_cast<int64_t>(elements.size())) {}

  // The elements of a view in row-major order. FailedPrecondition where there
  // are gaps between them or the CPU cannot read them.
  static absl::StatusOr<BasicTypedSpan> Of(const BasicTensorView<Byte>& view) {
    if (!view.IsContiguous() || view.kind() == MemoryKind::kCudaDevice) {
      return absl::FailedPreconditionError(
          "the optimizer steps contiguous tensors in host memory: copy the "
          "view to one first");
    }
    return BasicTypedSpan(view.data(), view.dtype(), view.element_count());
  }

  operator BasicTypedSpan<const std::byte>() const {
    return BasicTypedSpan<const std::byte>(data_, dtype_, size_);
  }

  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t size_in_bytes() const { return size_ * SizeInBytes(dtype_); }

  // The element at `index`, which may be the one past the last.
  Byte* At(int64_t index) const {
    return data_ == nullptr ? nullptr : data_ + index * SizeInBytes(dtype_);
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t size_ = 0;
};

using TypedSpan = BasicTypedSpan<std::byte>;
using ConstTypedSpan = BasicTypedSpan<const std::byte>;

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TYPED_SPAN_H_
