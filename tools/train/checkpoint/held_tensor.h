// HeldTensor: which rows and columns of a whole tensor a rank's parameter is,
// as a checkpoint says it of each of its parts.
//
//   std::string text = FormatHeldTensors(held);
//   // layers.0.attention.qkv.weight 40x24 0-12,24-28*,32-36* 0-24
//   TESSERA_ASSIGN_OR_RETURN(held, ParseHeldTensors(text));
//
// A line for a parameter: its name, the whole shape, the ranges of rows that it
// has, one behind the other, and the columns of these ("0-1" for vectors). Rows
// with a star are copies of what another part has too; those without are the
// ones to read.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_HELD_TENSOR_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_HELD_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::train {

inline constexpr size_t kMaxHeldTensors = size_t{1} << 20;
inline constexpr size_t kMaxHeldRanges = 64;  // Of the rows of one tensor.

struct HeldTensor {
  std::string name = "";
  std::vector<int64_t> shape = {};  // Whole: [elements] or [rows, columns].
  std::vector<tensor_parallel::ParameterRows> rows = {};
  tensor_parallel::IndexRange columns = {0, 1};

  int64_t width() const { return columns.size(); }
  // Of the whole, and held.
  int64_t whole_elements() const;
  int64_t element_count() const;
  std::vector<int64_t> held_shape() const;

  friend bool operator==(const HeldTensor&, const HeldTensor&) = default;
};

HeldTensor HeldTensorOf(const tensor_parallel::Parameter& parameter);
// All of a tensor.
HeldTensor WholeTensor(std::string name, std::vector<int64_t> shape);

// Whether their elements are the same ones in the same order.
bool HoldSame(const HeldTensor& a, const HeldTensor& b);

std::string FormatHeldTensors(std::span<const HeldTensor> tensors);

// Untrusted: lengths and sizes are bounded. InvalidArgument with the number of
// the line where it is not as above, what is held is not within the whole, or
// a tensor has more elements than a checkpoint may have.
absl::StatusOr<std::vector<HeldTensor>> ParseHeldTensors(std::string_view text);

// CopiesTo: where the elements of a part of a tensor lie among other parts.
//
//   // Elements [begin, end) of what `target` holds, from the parts of a
//   // checkpoint:
//   for (const TensorCopy& copy : CopiesTo(target, begin, end, sources)) ...
//
// Pure arithmetic over the ranges of held_tensor.h.

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

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_HELD_TENSOR_H_
