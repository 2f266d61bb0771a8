#include "base/tensor/strided_loop.h"

#include <algorithm>
#include <cstdlib>

namespace tessera {
namespace {

bool IsOuter(const LoopDim& a, const LoopDim& b) {
  const int64_t by_target = std::abs(a.target_stride);
  const int64_t other_target = std::abs(b.target_stride);
  if (by_target != other_target) return by_target > other_target;
  return std::abs(a.source_stride) > std::abs(b.source_stride);
}

// True if one step of `outer` equals all steps of `inner`, in source and
// target.
bool CanJoin(const LoopDim& outer, const LoopDim& inner) {
  return outer.source_stride == inner.source_stride * inner.size &&
         outer.target_stride == inner.target_stride * inner.size;
}

}  // namespace

StridedLoop MakeStridedLoop(std::span<const int64_t> shape,
                            std::span<const int64_t> source_strides,
                            std::span<const int64_t> target_strides) {
  StridedLoop dims;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    dims.push_back({shape[i], source_strides[i], target_strides[i]});
  }
  if (dims.empty()) return {LoopDim{1, 1, 1}};
  std::stable_sort(dims.begin(), dims.end(), IsOuter);
  StridedLoop loop;
  for (const LoopDim& dim : dims) {
    if (!loop.empty() && CanJoin(loop.back(), dim)) {
      loop.back() = {loop.back().size * dim.size, dim.source_stride,
                     dim.target_stride};
    } else {
      loop.push_back(dim);
    }
  }
  return loop;
}

}  // namespace tessera
