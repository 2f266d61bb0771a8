// The part (rows and columns) of a whole tensor that a rank holds, and the
// copies that assemble one such part from others. Pure arithmetic.
//
//   std::string text = FormatHeldTensors(held);
//   // layers.0.attention.qkv.weight 40x24 0-12,24-28*,32-36* 0-24
//   TESSERA_ASSIGN_OR_RETURN(held, ParseHeldTensors(text));
//   // Elements [begin, end) of `target` from the parts of a checkpoint:
//   for (const TensorCopy& copy : CopiesTo(target, begin, end, sources)) ...
//
// A line contains a parameter's name, the whole shape, the held ranges of rows
// in order, and the held columns ("0-1" for vectors). Rows with a star are
// copies; readers use the primary rows, which another part holds.
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
#include "tensor_parallel/sharding/partition.h"

namespace tessera::train {

inline constexpr size_t kMaxHeldTensors = size_t{1} << 20;
inline constexpr size_t kMaxHeldRanges = 8192;  // Per tensor.

struct HeldTensor {
  std::string name = "";
  std::vector<int64_t> shape = {};  // Whole: [elements] or [rows, columns].
  std::vector<tensor_parallel::ParameterRows> rows = {};
  tensor_parallel::IndexRange columns = {0, 1};

  int64_t width() const { return columns.size(); }
  // The number of elements of the whole tensor.
  int64_t whole_elements() const;
  std::vector<int64_t> held_shape() const;

  friend bool operator==(const HeldTensor&, const HeldTensor&) = default;
};

HeldTensor HeldTensorOf(const tensor_parallel::Parameter& parameter);
// The part of a rank that holds the whole tensor.
HeldTensor WholeTensor(std::string name, std::vector<int64_t> shape);

// True if both hold the same elements in the same order.
bool HoldSame(const HeldTensor& a, const HeldTensor& b);

std::string FormatHeldTensors(std::span<const HeldTensor> tensors);

// Parses untrusted text; lengths and sizes are bounded. InvalidArgument, with
// the line number, if a line is malformed, a part exceeds the whole tensor, or
// a tensor has more elements than a checkpoint allows.
absl::StatusOr<std::vector<HeldTensor>> ParseHeldTensors(std::string_view text);

// A rectangle of the whole tensor that a source and the target both hold.
struct TensorCopy {
  size_t source = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // The index of the first element, and the distance between rows, in the
  // source and in the target.
  int64_t from = 0;
  int64_t from_width = 0;
  int64_t to = 0;
  int64_t to_width = 0;

  int64_t elements() const { return rows * columns; }
  friend bool operator==(const TensorCopy&, const TensorCopy&) = default;
};

// Returns the copies that set elements [begin, end) of `target`, ascending by
// `to` within each source. Only primary rows are copied. Rectangles that are
// contiguous on both sides become one row. Preconditions: all are parts of one
// tensor, 0 <= begin <= end, and `end` is within the held part of `target`.
std::vector<TensorCopy> CopiesTo(const HeldTensor& target, int64_t begin,
                                 int64_t end,
                                 std::span<const HeldTensor* const> sources);

// True if the primary rows of `sources` contain each element exactly once.
bool CoverOnce(std::span<const HeldTensor* const> sources);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_HELD_TENSOR_H_
