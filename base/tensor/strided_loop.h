// StridedLoop: a loop nest that visits the elements of two layouts of the same
// shape together, in the fastest order and with as few loops as possible.
//
//   StridedLoop loop = MakeStridedLoop(shape, source_strides, target_strides);
//   ForEachStep(loop, [&](int64_t source, int64_t target) { ... });
//
// Pure arithmetic on elements.
#ifndef TESSERA_BASE_TENSOR_STRIDED_LOOP_H_
#define TESSERA_BASE_TENSOR_STRIDED_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"

namespace tessera {

struct LoopDim {
  int64_t size = 1;
  int64_t source_stride = 0;
  int64_t target_stride = 0;
};

// Outermost first. Sizes are at least 2, except that a nest of one element has
// a single dimension of size 1.
using StridedLoop = absl::InlinedVector<LoopDim, 6>;

// Drops dimensions of size 1, orders the others by falling target stride, and
// merges neighbours that one loop can cover. Sizes must not be 0, and target
// elements must be distinct.
StridedLoop MakeStridedLoop(std::span<const int64_t> shape,
                            std::span<const int64_t> source_strides,
                            std::span<const int64_t> target_strides);

// Calls `visit(source_offset, target_offset)` for each step of all loops.
template <typename Visit>
void ForEachStep(std::span<const LoopDim> loop, Visit visit) {
  absl::InlinedVector<int64_t, 6> index(loop.size(), 0);
  int64_t source = 0, target = 0;
  while (true) {
    visit(source, target);
    size_t dim = loop.size();
    while (true) {
      if (dim == 0) return;
      const LoopDim& step = loop[--dim];
      source += step.source_stride;
      target += step.target_stride;
      if (++index[dim] < step.size) break;
      index[dim] = 0;
      source -= step.size * step.source_stride;
      target -= step.size * step.target_stride;
    }
  }
}

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_STRIDED_LOOP_H_
