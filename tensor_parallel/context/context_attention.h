// ContextAttention: attention over a sequence whose positions are divided among
// the ranks of a group.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_CONTEXT_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_CONTEXT_ATTENTION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

// How the ranks share the work.
enum class ContextAlgorithm {
  kRing,     // RingAttention.
  kUlysses,  // UlyssesAttention.
};

// "ring", "ulysses".
constexpr std::string_view ContextAlgorithmName(ContextAlgorithm algorithm) {
  switch (algorithm) {
    case ContextAlgorithm::kRing:
      return "ring";
    case ContextAlgorithm::kUlysses:
      return "ulysses";
  }
  return "unknown";
}

inline std::ostream& operator<<(std::ostream& os, ContextAlgorithm algorithm) {
  return os << ContextAlgorithmName(algorithm);
}

struct ContextAttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 1;  // Divides heads.
  int64_t head_size = 0;
  bool causal = true;
  std::optional<double> scale = {};  // Default: 1 / sqrt(head_size).
  double cap = 0;                    // AttentionBlock::cap.
  DType dtype = DType::kF32;         // f64, f32, bf16 or f16.
};

// The interface that transformer blocks use for every kind of context
// parallelism.
//
//   TESSERA_RETURN_IF_ERROR(attention->Forward({q, k, v}, output, statistics));
//   ...
//   TESSERA_RETURN_IF_ERROR(
//       attention->Backward({q, k, v}, output, statistics, output_gradient,
//                           {q_gradient, k_gradient, v_gradient}));
//
//   implementation       heads of a rank      what moves
//   RingAttention        all                  keys and values, round the ranks
//   UlyssesAttention     some                 everything, by all-to-all
//
//   tensor               shape, of the rank's positions, in their order
//   query, output        [sequences, positions, heads, head_size]
//   key, value           [sequences, positions, kv_heads, head_size]
//   log_sum_exp          [sequences, positions, heads], statistics
//
// Gradients have the shapes of their tensors. There may be any number of
// sequences, all with the same layout. Tensors have one dtype; statistics are
// f64 for f64, otherwise f32. Tensors are contiguous, except that the heads of
// queries, keys, values and their gradients may be apart. The rank's positions
// are layout().PositionsOf(rank); the caller must rotate queries and keys by
// these positions.
//
// Calls are collectives of the group, one at a time. The object keeps no state
// from a forward to its backward, so that any number of micro-batches may come
// in between, and a forward may be executed again. Errors: InvalidArgument that
// names the tensor and the required properties, or the communicator's errors.
class ContextAttention {
 public:
  struct Inputs {
    ConstTensorView query;
    ConstTensorView key;
    ConstTensorView value;
    // i64 with the shape FirstKeysShape(): the numbers of FirstKeys, in the
    // device's memory; rows may be strided. nullopt: only the causal mask, if
    // any.
    std::optional<ConstTensorView> first_keys = {};
    // Statistics [heads], which Forward raises to the scores that this rank
    // computes (op::MaxScores): the maximum over the group's ranks is that of
    // the whole sequences.
    std::optional<TensorView> max_scores = {};
  };
  struct Gradients {
    TensorView query;
    TensorView key;
    TensorView value;
  };

  virtual ~ContextAttention() = default;

  // The options of the attention; `scale` is always set.
  virtual const ContextAttentionOptions& options() const = 0;
  virtual const SequenceLayout& layout() const = 0;

  // Returns the numbers for Inputs::first_keys, a mask in addition to the
  // causal one: the query at position p of sequence s sees no key before
  // position first_positions[s * layout().length() + p], which must not
  // decrease with p. It implements sliding windows and document boundaries (the
  // begin of p's document).
  std::vector<int64_t> FirstKeys(
      std::span<const int64_t> first_positions) const;
  // [tables, sequences, queries of a table].
  virtual std::array<int64_t, 3> FirstKeysShape(int64_t sequences) const = 0;

  // Sets the output, and the log_sum_exp that the backward needs.
  virtual absl::Status Forward(const Inputs& inputs, TensorView output,
                               TensorView log_sum_exp) = 0;

  // Sets the gradients of the inputs from the gradient of the output. `output`
  // and `log_sum_exp` are the results of the forward.
  virtual absl::Status Backward(const Inputs& inputs, ConstTensorView output,
                                ConstTensorView log_sum_exp,
                                ConstTensorView output_gradient,
                                const Gradients& gradients) = 0;

 protected:
  ContextAttention() = default;

  // The queries and keys of a call of op::Attend for which first keys are
  // needed.
  struct FirstKeysTable {
    std::vector<int64_t> queries;  // Their positions.
    std::vector<int64_t> keys;     // Their positions, ascending.
  };
  // The tables of all calls, in the order of Inputs::first_keys.
  virtual std::vector<FirstKeysTable> FirstKeysTables() const = 0;

  ContextAttention(const ContextAttention&) = default;
  ContextAttention(ContextAttention&&) = default;
  ContextAttention& operator=(const ContextAttention&) = default;
  ContextAttention& operator=(ContextAttention&&) = default;
};

// Rejects invalid operands of attention over ranks, before any communication.
// Internal to this package.
class OperandShapes {
 public:
  // Returns the options with their scale set. InvalidArgument if the layout
  // does not have the group's number of ranks, a count is below 1, kv heads do
  // not divide the heads, or the type is not f64, f32, bf16 or f16.
  static absl::StatusOr<ContextAttentionOptions> CheckOptions(
      const TensorGroup& group, const SequenceLayout& layout,
      const ContextAttentionOptions& options);

  // The shapes of a rank with `positions` positions, for the number of
  // sequences in `query`. Precondition: the options are valid.
  OperandShapes(int64_t rank, int64_t positions, const ConstTensorView& query,
                const ContextAttentionOptions& options)
      : rank_(rank),
        sequences_(query.rank() == 0 ? 0 : query.shape()[0]),
        positions_(positions),
        options_(options) {}

  absl::Status CheckForward(const ContextAttention::Inputs& inputs,
                            const ConstTensorView& output,
                            const ConstTensorView& log_sum_exp) const;
  absl::Status CheckBackward(
      const ContextAttention::Inputs& inputs, const ConstTensorView& output,
      const ConstTensorView& log_sum_exp,
      const ConstTensorView& output_gradient,
      const ContextAttention::Gradients& gradients) const;
  // `shape` is ContextAttention::FirstKeysShape. Precondition:
  // inputs.first_keys is set.
  absl::Status CheckFirstKeys(const ContextAttention::Inputs& inputs,
                              std::span<const int64_t> shape) const;

 private:
  absl::Status Check(std::string_view name, const ConstTensorView& x,
                     DType dtype, std::span<const int64_t> shape,
                     bool contiguous = true) const;
  absl::Status CheckHeads(std::string_view name, const ConstTensorView& x,
                          int64_t heads, bool contiguous) const;

  int64_t rank_;
  int64_t sequences_;
  int64_t positions_;
  ContextAttentionOptions options_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_CONTEXT_ATTENTION_H_
