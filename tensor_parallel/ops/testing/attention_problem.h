// AttentionProblem: inputs and results of attention. ExpectAttentionIsReference
// compares the results with the formulas in f64.
//
//   std::mt19937_64 random(1);
//   AttentionProblem problem(DType::kBF16, {.sequences = 1, .queries = 300,
//       .keys = 300, .heads = 4, .kv_heads = 2, .d = 64}, random);
//   ExpectAttentionIsReference(ops, problem, Arithmetic::kStatistics);
#ifndef TESSERA_TENSOR_PARALLEL_OPS_TESTING_ATTENTION_PROBLEM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_TESTING_ATTENTION_PROBLEM_H_

#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {

struct AttentionSizes {
  int64_t sequences, queries, keys, heads, kv_heads, d;
};
std::ostream& operator<<(std::ostream& os, const AttentionSizes& sizes);

struct MaskedAttentionCase {
  AttentionSizes sizes;
  BlockKind kind;
};

// Cases that a GPU computes in bf16: the head sizes and groups of real models,
// lengths that do not fill tiles, several tiles and sequences, more keys than
// queries.
inline constexpr MaskedAttentionCase kGpuAttentionCases[] = {
    {{1, 300, 300, 32, 8, 128}, BlockKind::kCausal},
    {{1, 300, 300, 32, 8, 64}, BlockKind::kCausal},
    {{2, 512, 512, 8, 2, 128}, BlockKind::kCausal},
    {{2, 512, 512, 8, 2, 64}, BlockKind::kFull},
    {{3, 200, 456, 4, 2, 128}, BlockKind::kCausal},
    {{3, 200, 456, 4, 4, 64}, BlockKind::kCausal},
    {{1, 1000, 1000, 4, 1, 128}, BlockKind::kCausal},
    {{1, 1000, 1000, 4, 2, 64}, BlockKind::kCausal},
    {{1, 1000, 300, 2, 2, 128}, BlockKind::kFull},
};

// Rows of inputs have gaps, which are multiples of 8 elements if d is a
// multiple of 8, as cuDNN requires. Rows of results have gaps of `state_gap`
// elements.
struct AttentionProblem {
  AttentionProblem(DType dtype, const AttentionSizes& sizes,
                   std::mt19937_64& random, int64_t state_gap = 0);

  // The state before any block is merged.
  void Reset();

  AttentionBlock Block() const;
  AttentionState State() const { return {output.view(), log_sum_exp.view()}; }
  AttentionGradients Gradients() const;

  // A block of keys [begin, end) for queries [first, last).
  AttentionBlock Block(int64_t first, int64_t last, int64_t begin, int64_t end,
                       BlockKind part_kind) const;
  AttentionState State(int64_t first, int64_t last) const;
  AttentionGradients Gradients(int64_t first, int64_t last, int64_t begin,
                               int64_t end) const;

  bool Sees(int64_t sequence, int64_t q, int64_t k) const;

  AttentionSizes sizes;
  TestTensor query, key, value, output, log_sum_exp, output_gradient, delta;
  TestTensor query_gradient, key_gradient, value_gradient;
  BlockKind kind = BlockKind::kCausal;
  double scale;
  double cap = 0;
  std::vector<int64_t>
      first_keys;  // For each query of each sequence; or empty.
};

// The probabilities, outputs and gradients by the textbook formulas, in f64.
class AttentionReference {
 public:
  AttentionReference(const AttentionProblem& problem, Arithmetic arithmetic);

  std::vector<double> output, log_sum_exp, delta;
  std::vector<double> query_gradient, key_gradient, value_gradient;

  // Bounds of the errors from rounding to bf16; zeros for other types.
  struct Errors {
    std::vector<double> output, query_gradient, key_gradient, value_gradient;
  };
  Errors errors;

 private:
  // The row of a head's query, `i` in [sequences, queries, heads].
  void AddRow(const AttentionProblem& p, int64_t i);
  // Sets log_sum_exp[i] and returns the weight of every key; empty if the query
  // sees none. `slopes` are those of the scores in the products.
  std::vector<double> SetShares(const AttentionProblem& p, int64_t i,
                                std::vector<double>& slopes);
  // Sums the gradients of keys and values over the heads of groups.
  void SumGroups(const AttentionSizes& s);

  const double rounding_;       // Relative; of weights and scores' gradients.
  const double late_rounding_;  // For the output and the results.
  const std::vector<double> query_, key_, value_, gradient_;
  // [sequences, keys, heads, d]: before the sums over groups.
  std::vector<double> key_of_heads_, value_of_heads_;
  Errors head_errors_;
};

// The largest error of each result, in units of its bound.
struct AttentionErrors {
  double output, log_sum_exp, query_gradient, key_gradient, value_gradient;
};
AttentionErrors AttentionErrorsOf(const AttentionProblem& problem,
                                  const AttentionReference& reference);

// Computes the problem, forward and backward, and expects its results to be
// within the bounds. The state and the gradients should be cleared.
void ExpectAttentionIsReference(Ops& ops, AttentionProblem& problem,
                                const AttentionReference& reference);
void ExpectAttentionIsReference(Ops& ops, AttentionProblem& problem,
                                Arithmetic arithmetic);

// Computes a case in bf16 with each of `all_ops`, and the same numbers in f32
// with the first. If `rounds_late`, expects the results in bf16 to be within
// the bounds of Arithmetic::kTensorCores and to show rounding; otherwise
// expects no rounding, not even of weights, as in our own GPU kernels.
void ExpectAttentionOfBothTypes(std::span<Ops* const> all_ops,
                                const MaskedAttentionCase& attention,
                                bool rounds_late);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_TESTING_ATTENTION_PROBLEM_H_
