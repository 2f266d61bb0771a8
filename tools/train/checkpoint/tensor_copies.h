// CopiesTo: where the elements of a part of a tensor lie among other parts.
//
//   // Elements [begin, end) of what `target` holds, from the parts of a
//   // checkpoint:
//   for (const TensorCopy& copy : CopiesTo(target, begin, end, sources)) ...
//
// Pure arithmetic over the ranges of held_tensor.h.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_TENSOR_COPIES_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_TENSOR_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/train/checkpoint/held_tensor.h"

namespace tessera::train {

// A rectangle of the whole tensor that a source and the target both hold.
struct TensorCopy {
  size_t source = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // Its first element among those that are held there, and how many there are
  // from one row to the next.
  int64_t from = 0;
  int64_t from_width = 0;
  int64_t to = 0;
  int64_t to_width = 0;

  int64_t elements() const { return rows * columns; }
  friend bool operator==(const TensorCopy&, const TensorCopy&) = default;
};

// From primary rows alone, ascending by `to` within each source. Rectangles
// whose rows lie one behind the other on both sides are one row. Preconditions:
// all are of one tensor, 0 <= begin <= end <= target.element_count().
std::vector<TensorCopy> CopiesTo(const HeldTensor& target, int64_t begin,
                                 int64_t end,
                                 std::span<const HeldTensor* const> sources);

// Whether the primary rows of `sources` have each element of the tensor once.
bool CoverOnce(std::span<const HeldTensor* const> sources);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_TENSOR_COPIES_H_
