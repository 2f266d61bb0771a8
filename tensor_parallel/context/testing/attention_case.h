// Helpers for the tests of context attention: cases, the comparison with one
// rank, and the comparison with finite differences.
//
//   TESSERA_ASSERT_OK_AND_ASSIGN(const auto whole, MakeWholeAttention(c));
//   EXPECT_THAT(RunRanks(c.ranks, [&](Communicator& communicator) {
//     return CheckAttention(communicator, c, whole, MakeRingAttention);
//   }), Each(IsOk()));
//
// The reference is attention over a whole sequence by its definition, in
// float64.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_TESTING_ATTENTION_CASE_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_TESTING_ATTENTION_CASE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "collectives/communicator.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

// A tensor [length, heads, size], by position (of one sequence after another).
struct PlainTensor {
  PlainTensor(int64_t length, int64_t heads, int64_t size)
      : length(length),
        heads(heads),
        size(size),
        values(static_cast<size_t>(length * heads * size)) {}

  double& at(int64_t position, int64_t head, int64_t d) {
    return values[static_cast<size_t>((position * heads + head) * size + d)];
  }
  double at(int64_t position, int64_t head, int64_t d) const {
    return values[static_cast<size_t>((position * heads + head) * size + d)];
  }

  int64_t length;
  int64_t heads;
  int64_t size;
  std::vector<double> values;
};

struct PlainAttention {
  PlainTensor output;
  PlainTensor query_gradient;
  PlainTensor key_gradient;
  PlainTensor value_gradient;
  std::vector<double> max_scores;  // By head.
};

// Computes softmax(q k^T / sqrt(size)) v for every head, and the gradients of
// the sum of the output times `gradient`. Query i sees no key before first[i],
// unless `first` is empty.
PlainAttention Attend(const PlainTensor& query, const PlainTensor& key,
                      const PlainTensor& value, const PlainTensor& gradient,
                      bool causal, const std::vector<int64_t>& first = {});

// Rotates the pairs (x[i], x[i + size/2]) at position p by the angle p
// base^(-2i/size), or by its negative if `back`: the definition of rotary
// positions (arXiv 2104.09864).
void Rotate(double base, bool back, PlainTensor& x);

struct AttentionCase {
  int64_t ranks = 1;
  int64_t length = 0;
  bool zigzag = false;
  bool causal = true;
  DType dtype = DType::kF64;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 4;
  // Queries and keys are first rotated by their positions in the layout.
  bool rotary = false;
  int64_t sequences = 1;
  // The number of keys that a query sees, including its own position; 0: all.
  int64_t window = 0;
  // Sequences are divided into documents that do not see each other.
  bool documents = false;

  // The first position that each position of each sequence sees; empty: all.
  std::vector<int64_t> first_positions() const;
  double tolerance() const;
  SequenceLayout layout() const;
  ContextAttentionOptions options() const;
};

std::ostream& operator<<(std::ostream& os, const AttentionCase& c);

// 1, 2, 3, 4 and 8 ranks; empty sequences, sequences with fewer positions than
// ranks, lengths that the ranks do and do not divide; both layouts; f64, f32
// and bf16; with rotary positions; no sequence and several.
std::vector<AttentionCase> AllAttentionCases();

// Random tensors [sequences * length, ...], and the results of a plain loop
// over each whole sequence.
struct WholeAttention {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor gradient;
  PlainAttention plain;
};
absl::StatusOr<WholeAttention> MakeWholeAttention(const AttentionCase& c);

using AttentionMaker =
    std::function<absl::StatusOr<std::unique_ptr<ContextAttention>>(
        const TensorGroup&, const AttentionCase&)>;

// OK if this rank's part of the output and of all gradients equals that of
// `whole` within the case's tolerance. A collective.
absl::Status CheckAttention(collectives::Communicator& communicator,
                            const AttentionCase& c, const WholeAttention& whole,
                            const AttentionMaker& make);

// OK if all gradients equal central differences of the forward within 1e-7.
// Requires f64 and no rotary positions. A collective.
absl::Status CheckDifferences(collectives::Communicator& communicator,
                              const AttentionCase& c,
                              const AttentionMaker& make);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_TESTING_ATTENTION_CASE_H_
