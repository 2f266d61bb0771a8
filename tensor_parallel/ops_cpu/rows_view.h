// RowsView: a matrix, or a vector as its only row, without its type. Kernels
// take these; OperandChecker has looked at the views before.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROWS_VIEW_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROWS_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

// `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicRowsView {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  BasicRowsView() = default;
  // Of one or two dimensions.
  explicit BasicRowsView(const BasicTensorView<Byte>& view)
      : data_(view.data()), stride_(view.rank() == 2 ? view.strides()[0] : 0) {}
  BasicRowsView(Byte* data, int64_t stride) : data_(data), stride_(stride) {}

  // Elements from one row to the next.
  int64_t stride() const { return stride_; }

  template <typename T>
  Like<T>* row(int64_t index) const {
    return reinterpret_cast<Like<T>*>(data_) + index * stride_;
  }

 private:
  Byte* data_ = nullptr;
  int64_t stride_ = 0;
};

using RowsView = BasicRowsView<std::byte>;
using ConstRowsView = BasicRowsView<const std::byte>;

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROWS_VIEW_H_
