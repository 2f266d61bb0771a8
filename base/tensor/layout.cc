#include "base/tensor/layout.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Enough for every rank in use; longer lists are truncated.
constexpr size_t kMaxPrintedDims = 16;

// Shape without its overflow check: a zero makes every product 0.
bool HasZero(std::span<const int64_t> shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

struct Extent {
  int64_t lowest = 0;
  int64_t highest = 0;
};

// False on overflow.
bool AddDimension(int64_t size, int64_t stride, Extent* extent) {
  int64_t reach = 0, unused = 0;
  if (__builtin_mul_overflow(size - 1, stride, &reach)) return false;
  int64_t* const end = reach < 0 ? &extent->lowest : &extent->highest;
  if (__builtin_add_overflow(*end, reach, end)) return false;
  // The distance between both ends, plus one, must not overflow either.
  return !__builtin_sub_overflow(extent->highest, extent->lowest, &unused) &&
         !__builtin_add_overflow(unused, 1, &unused);
}

}  // namespace

std::string DimsToString(std::span<const int64_t> dims) {
  const auto shown = dims.first(std::min(dims.size(), kMaxPrintedDims));
  return absl::StrCat("[", absl::StrJoin(shown, ","),
                      shown.size() < dims.size() ? ",...]" : "]");
}

absl::StatusOr<int64_t> ElementCount(std::span<const int64_t> shape) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", DimsToString(shape), ": dimension ", i, " has ",
                     "size ", shape[i], "; sizes are 0 or more"));
  }
  if (HasZero(shape)) return 0;
  int64_t count = 1;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape ", DimsToString(shape), " has more than 2^63-1 elements"));
    }
  }
  return count;
}

absl::StatusOr<Layout> Layout::RowMajor(std::span<const int64_t> shape) {
  Layout layout;
  TESSERA_ASSIGN_OR_RETURN(layout.element_count_, ElementCount(shape));
  layout.shape_.assign(shape.begin(), shape.end());
  layout.strides_.resize(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    layout.strides_[i] = stride;
    // Without elements the strides are irrelevant, but must not overflow.
    if (layout.element_count_ > 0) stride *= shape[i];
  }
  layout.highest_offset_ = std::max<int64_t>(layout.element_count_, 1) - 1;
  return layout;
}

absl::StatusOr<Layout> Layout::Strided(std::span<const int64_t> shape,
                                       std::span<const int64_t> strides) {
  if (shape.size() != strides.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", DimsToString(shape), " of rank ", shape.size(),
                     " with strides ", DimsToString(strides), " of rank ",
                     strides.size(), "; give one stride for each dimension"));
  }
  Layout layout;
  TESSERA_ASSIGN_OR_RETURN(layout.element_count_, ElementCount(shape));
  layout.shape_.assign(shape.begin(), shape.end());
  layout.strides_.assign(strides.begin(), strides.end());
  if (layout.element_count_ == 0) return layout;
  Extent extent;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (AddDimension(shape[i], strides[i], &extent)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "shape ", DimsToString(shape), " with strides ", DimsToString(strides),
        " spans more than 2^63-1 elements "
        "(dimension ",
        i, ")"));
  }
  layout.lowest_offset_ = extent.lowest;
  layout.highest_offset_ = extent.highest;
  return layout;
}

bool Layout::IsContiguous() const {
  if (element_count_ == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape_.size(); i-- > 0;) {
    if (shape_[i] == 1) continue;
    if (strides_[i] != expected) return false;
    expected *= shape_[i];
  }
  return true;
}

bool Layout::HasDistinctElements() const {
  if (IsContiguous()) return true;
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, reach
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] == 1) continue;
    // Cannot overflow: Strided has bounded every reach.
    const int64_t stride = std::abs(strides_[i]);
    steps.emplace_back(stride, stride * (shape_[i] - 1));
  }
  std::sort(steps.begin(), steps.end());
  int64_t inner_reach = 0;
  for (const auto& [stride, reach] : steps) {
    if (stride <= inner_reach) return false;
    inner_reach += reach;
  }
  return true;
}

absl::StatusOr<int64_t> Layout::OffsetOf(
    std::span<const int64_t> indices) const {
  if (indices.size() != shape_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "index ", DimsToString(indices), " of rank ", indices.size(),
        " into shape ", DimsToString(shape_), " of rank ", rank()));
  }
  int64_t offset = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= shape_[i]) {
      return absl::OutOfRangeError(absl::StrCat(
          "index ", DimsToString(indices), " into shape ", DimsToString(shape_),
          ": dimension ", i, " allows 0 to ", shape_[i] - 1));
    }
    offset += indices[i] * strides_[i];
  }
  return offset;
}

absl::Status Layout::CheckDim(int dim) const {
  if (dim >= 0 && dim < rank()) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("dimension ", dim, " of shape ",
                                            DimsToString(shape_),
                                            "; expected 0 to ", rank() - 1));
}

absl::StatusOr<LayoutSlice> Layout::Narrow(int dim, int64_t start,
                                           int64_t length) const {
  TESSERA_RETURN_IF_ERROR(CheckDim(dim));
  const size_t d = static_cast<size_t>(dim);
  if (start < 0 || length < 0 || start > shape_[d] ||
      length > shape_[d] - start) {
    return absl::OutOfRangeError(absl::StrCat(
        "narrow of dimension ", dim, " of shape ", DimsToString(shape_), " to ",
        length, " from ", start, "; it has ", shape_[d]));
  }
  Dims shape = shape_;
  shape[d] = length;
  LayoutSlice slice;
  TESSERA_ASSIGN_OR_RETURN(slice.layout, Strided(shape, strides_));
  if (slice.layout.element_count() > 0) slice.offset = start * strides_[d];
  return slice;
}

absl::StatusOr<LayoutSlice> Layout::Select(int dim, int64_t index) const {
  TESSERA_RETURN_IF_ERROR(CheckDim(dim));
  const size_t d = static_cast<size_t>(dim);
  if (index < 0 || index >= shape_[d]) {
    return absl::OutOfRangeError(absl::StrCat(
        "select of index ", index, " of dimension ", dim, " of shape ",
        DimsToString(shape_), "; it has ", shape_[d]));
  }
  Dims shape = shape_, strides = strides_;
  shape.erase(shape.begin() + dim);
  strides.erase(strides.begin() + dim);
  LayoutSlice slice;
  TESSERA_ASSIGN_OR_RETURN(slice.layout, Strided(shape, strides));
  if (slice.layout.element_count() > 0) slice.offset = index * strides_[d];
  return slice;
}

absl::StatusOr<Layout> Layout::Transpose(int dim_a, int dim_b) const {
  TESSERA_RETURN_IF_ERROR(CheckDim(dim_a));
  TESSERA_RETURN_IF_ERROR(CheckDim(dim_b));
  Layout layout = *this;
  const size_t a = static_cast<size_t>(dim_a), b = static_cast<size_t>(dim_b);
  std::swap(layout.shape_[a], layout.shape_[b]);
  std::swap(layout.strides_[a], layout.strides_[b]);
  return layout;
}

absl::StatusOr<Layout> Layout::Reshape(std::span<const int64_t> shape) const {
  TESSERA_ASSIGN_OR_RETURN(Layout layout, RowMajor(shape));
  if (layout.element_count_ != element_count_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reshape of ", DimsToString(shape_), " with ", element_count_,
        " elements to ", DimsToString(shape), " with ", layout.element_count_));
  }
  if (!IsContiguous()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "reshape of shape ", DimsToString(shape_), " with strides ",
        DimsToString(strides_),
        ", which is not contiguous; copy it to a new tensor first"));
  }
  return layout;
}

std::ostream& operator<<(std::ostream& os, const Layout& layout) {
  return os << "shape " << DimsToString(layout.shape()) << " strides "
            << DimsToString(layout.strides());
}

}  // namespace tessera
