// Layout: the shape and strides of a tensor, and slicing.
//
//   TESSERA_ASSIGN_OR_RETURN(Layout matrix, Layout::RowMajor({{4, 6}}));
//   TESSERA_ASSIGN_OR_RETURN(LayoutSlice columns, matrix.Narrow(1, 2, 3));
//   // columns.layout: shape [4,3], strides [6,1]; columns.offset: 2
//
// Pure arithmetic on element counts: no memory, no dtype. Any rank, including 0
// (one element). Sizes may be 0. Strides may be zero or negative; the view
// checks whether the elements are inside a storage.
#ifndef TESSERA_BASE_TENSOR_LAYOUT_H_
#define TESSERA_BASE_TENSOR_LAYOUT_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"

namespace tessera {

// One number for each dimension.
using Dims = absl::InlinedVector<int64_t, 6>;

// "[4,3]".
std::string DimsToString(std::span<const int64_t> dims);

// The product. InvalidArgument if a size is negative or the product exceeds
// 2^63-1. A zero size makes it 0, whatever the others.
absl::StatusOr<int64_t> ElementCount(std::span<const int64_t> shape);

struct LayoutSlice;

class Layout {
 public:
  // One element, rank 0.
  Layout() = default;

  // The last dimension is contiguous, without gaps.
  static absl::StatusOr<Layout> RowMajor(std::span<const int64_t> shape);

  // Strides are in elements. InvalidArgument if the lengths differ, a size
  // is negative, or the distance between two elements could exceed 2^63-1.
  static absl::StatusOr<Layout> Strided(std::span<const int64_t> shape,
                                        std::span<const int64_t> strides);

  int rank() const { return static_cast<int>(shape_.size()); }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int64_t element_count() const { return element_count_; }

  // Offsets of the lowest and highest element, relative to the element at index
  // zero. Both 0 if there are no elements.
  int64_t lowest_offset() const { return lowest_offset_; }
  int64_t highest_offset() const { return highest_offset_; }

  // Row-major without gaps; the strides of dimensions of size 1 do not matter.
  // True if there is no element.
  bool IsContiguous() const;

  // False if two indices may refer to the same element, as with a stride of 0.
  // Exact for every layout that slicing and transposing produces from a
  // row-major one; may be false for other layouts without overlap.
  bool HasDistinctElements() const;

  // The offset of an element. InvalidArgument if there are not rank()
  // indices, OutOfRange if one is not in [0, size).
  absl::StatusOr<int64_t> OffsetOf(std::span<const int64_t> indices) const;

  // The part with indices [start, start + length) of `dim`. Keeps the rank.
  absl::StatusOr<LayoutSlice> Narrow(int dim, int64_t start,
                                     int64_t length) const;
  // The part with index `index` of `dim`. Removes `dim`.
  absl::StatusOr<LayoutSlice> Select(int dim, int64_t index) const;
  // Exchanges two dimensions.
  absl::StatusOr<Layout> Transpose(int dim_a, int dim_b) const;
  // The same elements in the same row-major order. FailedPrecondition unless
  // contiguous, InvalidArgument if the element counts differ.
  absl::StatusOr<Layout> Reshape(std::span<const int64_t> shape) const;

  friend bool operator==(const Layout& a, const Layout& b) {
    return a.shape_ == b.shape_ && a.strides_ == b.strides_;
  }
  friend std::ostream& operator<<(std::ostream& os, const Layout& layout);

 private:
  absl::Status CheckDim(int dim) const;

  Dims shape_;
  Dims strides_;
  int64_t element_count_ = 1;
  int64_t lowest_offset_ = 0;
  int64_t highest_offset_ = 0;
};

// A part of a layout; `offset` is the position of its index zero in the whole.
// If the part has no elements, `offset` is 0.
struct LayoutSlice {
  Layout layout;
  int64_t offset = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_LAYOUT_H_
