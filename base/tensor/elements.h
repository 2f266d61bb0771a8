// Elements: typed access to the elements of a tensor view.
//
//   TESSERA_ASSIGN_OR_RETURN(Elements<float> x, view.As<float>());
//   x(2, 0) += 1;
//   float y = x[indices];
//
// Only assert() checks indices, as for an array. BasicTensorView::As creates
// these objects and checks everything else.
#ifndef TESSERA_BASE_TENSOR_ELEMENTS_H_
#define TESSERA_BASE_TENSOR_ELEMENTS_H_

#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/tensor/layout.h"

namespace tessera {

template <typename T>
class Elements {
 public:
  // Every offset of `layout` from `data` must be an element.
  Elements(T* data, Layout layout) : data_(data), layout_(std::move(layout)) {}

  T* data() const { return data_; }
  const Layout& layout() const { return layout_; }

  // Takes one index per dimension, each in [0, size).
  template <std::integral... Index>
  T& operator()(Index... indices) const {
    assert(layout_.rank() == static_cast<int>(sizeof...(indices)));
    [[maybe_unused]] size_t dim = 0;  // Rank 0 has none.
    int64_t offset = 0;
    ((offset += Step(dim++, static_cast<int64_t>(indices))), ...);
    return data_[offset];
  }
  T& operator[](std::span<const int64_t> indices) const {
    assert(layout_.rank() == static_cast<int>(indices.size()));
    int64_t offset = 0;
    for (size_t dim = 0; dim < indices.size(); ++dim) {
      offset += Step(dim, indices[dim]);
    }
    return data_[offset];
  }

 private:
  int64_t Step(size_t dim, int64_t index) const {
    assert(index >= 0 && index < layout_.shape()[dim]);
    return index * layout_.strides()[dim];
  }

  T* data_;
  Layout layout_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_ELEMENTS_H_
