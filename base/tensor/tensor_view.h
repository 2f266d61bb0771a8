// TensorView and ConstTensorView: borrowed memory as a tensor.
//
//   std::vector<float> values(24);
//   TESSERA_ASSIGN_OR_RETURN(
//       TensorView matrix, TensorView::Of(std::span(values), {{4, 6}}));
//   TESSERA_ASSIGN_OR_RETURN(TensorView columns, matrix.Narrow(1, 2, 3));
//   TESSERA_ASSIGN_OR_RETURN(Elements<float> x, columns.As<float>());
//   x(3, 0) = 1;  // values[20]
//
// A view is a pointer, a dtype, a memory kind and a Layout; copying it copies
// no element. The memory must outlive it. Creating a view of a storage checks
// that every element lies in it, and parts of a view stay inside.
#ifndef TESSERA_BASE_TENSOR_TENSOR_VIEW_H_
#define TESSERA_BASE_TENSOR_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "base/tensor/elements.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"

namespace tessera {
namespace tensor_view_internal {

// OK if every element of `layout`, shifted by `offset`, is inside `bytes`.
absl::Status CheckExtent(size_t bytes, DType dtype, const Layout& layout,
                         int64_t offset);

// OK if elements of type `wanted` can be read through `data`.
absl::Status CheckTyped(DType wanted, size_t alignment, DType dtype,
                        MemoryKind kind, const void* data);

absl::Status CheckContiguous(const Layout& layout);

}  // namespace tensor_view_internal

// `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicTensorView {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>,
                                  const std::remove_const_t<T>, T>;

  // Row-major, at the front of `storage`. InvalidArgument if the dtype is
  // not valid or the shape has a negative size or too many elements;
  // OutOfRange if `storage` is too small.
  static absl::StatusOr<BasicTensorView> Create(
      std::span<Byte> storage, DType dtype, std::span<const int64_t> shape,
      MemoryKind kind = MemoryKind::kHost) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
    return Create(storage, dtype, std::move(layout), /*offset=*/0, kind);
  }

  // Any layout, with its index zero `offset` elements into `storage`. Errors as
  // above.
  static absl::StatusOr<BasicTensorView> Create(
      std::span<Byte> storage, DType dtype, Layout layout, int64_t offset = 0,
      MemoryKind kind = MemoryKind::kHost) {
    TESSERA_RETURN_IF_ERROR(tensor_view_internal::CheckExtent(
        storage.size(), dtype, layout, offset));
    Byte* const data = layout.element_count() == 0
                           ? storage.data()
                           : storage.data() + offset * SizeInBytes(dtype);
    return BasicTensorView(data, dtype, std::move(layout), kind);
  }

  // Row-major, over typed host memory.
  template <typename T>
  requires DTypeElement<std::remove_const_t<T>>
  static absl::StatusOr<BasicTensorView> Of(std::span<T> values,
                                            std::span<const int64_t> shape) {
    const std::span<Byte> storage(reinterpret_cast<Byte*>(values.data()),
                                  values.size_bytes());
    return Create(storage, kDTypeOf<std::remove_const_t<T>>, shape);
  }

  // A ConstTensorView of the same elements.
  operator BasicTensorView<const std::byte>() const {
    return BasicTensorView<const std::byte>(data_, dtype_, layout_, kind_);
  }

  // The element at index zero.
  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  MemoryKind kind() const { return kind_; }
  const Layout& layout() const { return layout_; }
  int rank() const { return layout_.rank(); }
  const Dims& shape() const { return layout_.shape(); }
  const Dims& strides() const { return layout_.strides(); }
  int64_t element_count() const { return layout_.element_count(); }
  bool IsContiguous() const { return layout_.IsContiguous(); }
  // Bytes of the elements, excluding gaps between them.
  int64_t size_in_bytes() const {
    return element_count() * SizeInBytes(dtype_);
  }

  // Parts of this view; base/tensor/layout.h lists the errors.
  absl::StatusOr<BasicTensorView> Narrow(int dim, int64_t start,
                                         int64_t length) const {
    TESSERA_ASSIGN_OR_RETURN(LayoutSlice slice,
                             layout_.Narrow(dim, start, length));
    return At(std::move(slice));
  }
  absl::StatusOr<BasicTensorView> Select(int dim, int64_t index) const {
    TESSERA_ASSIGN_OR_RETURN(LayoutSlice slice, layout_.Select(dim, index));
    return At(std::move(slice));
  }
  absl::StatusOr<BasicTensorView> Transpose(int dim_a, int dim_b) const {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, layout_.Transpose(dim_a, dim_b));
    return At({std::move(layout), 0});
  }
  absl::StatusOr<BasicTensorView> Reshape(
      std::span<const int64_t> shape) const {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, layout_.Reshape(shape));
    return At({std::move(layout), 0});
  }

  // The same view of a copy of the storage, with index zero at `data`.
  BasicTensorView MovedTo(Byte* data, MemoryKind kind) const {
    return BasicTensorView(data, dtype_, layout_, kind);
  }

  // The elements as T. InvalidArgument if the view's dtype is not that of T or
  // the data is not aligned for T, FailedPrecondition if the CPU cannot read
  // it.
  template <DTypeElement T>
  absl::StatusOr<Elements<Like<T>>> As() const {
    TESSERA_RETURN_IF_ERROR(tensor_view_internal::CheckTyped(
        kDTypeOf<T>, alignof(T), dtype_, kind_, data_));
    return Elements<Like<T>>(reinterpret_cast<Like<T>*>(data_), layout_);
  }

  // The elements in row-major order. Errors as As, and FailedPrecondition if
  // the view is not contiguous.
  template <DTypeElement T>
  absl::StatusOr<std::span<Like<T>>> AsSpan() const {
    TESSERA_ASSIGN_OR_RETURN(Elements<Like<T>> elements, As<T>());
    TESSERA_RETURN_IF_ERROR(tensor_view_internal::CheckContiguous(layout_));
    return std::span<Like<T>>(elements.data(),
                              static_cast<size_t>(element_count()));
  }

 private:
  template <typename Other>
  friend class BasicTensorView;

  BasicTensorView(Byte* data, DType dtype, Layout layout, MemoryKind kind)
      : data_(data), dtype_(dtype), kind_(kind), layout_(std::move(layout)) {}

  BasicTensorView At(LayoutSlice slice) const {
    Byte* const data =
        data_ == nullptr ? nullptr : data_ + slice.offset * SizeInBytes(dtype_);
    return BasicTensorView(data, dtype_, std::move(slice.layout), kind_);
  }

  Byte* data_;
  DType dtype_;
  MemoryKind kind_;
  Layout layout_;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_TENSOR_VIEW_H_
