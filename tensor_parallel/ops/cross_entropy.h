// Softmax cross-entropy over a range of the vocabulary, in parts between which
// ranks combine their statistics. A single rank can replace the first two
// operations by MaxAndSumExp.
//
//   ops.Run(op::RowMax{logits, largest});         // then the maximum over
//   ranks ops.Run(op::SumExp{logits, largest, sum});    // then the sum over
//   ranks ops.Run(op::Pick{logits, held, targets, picked});      // the same
//   ops.Run(op::CrossEntropyLosses{largest, sum, picked, targets, losses});
//
// largest, sum and picked are statistics [tokens].
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CROSS_ENTROPY_H_

#include <cstdint>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// The target of a token without loss and gradient.
inline constexpr int64_t kNoTarget = -1;

// Terms of the loss in addition to the cross-entropy of a token's target. With
// p the probabilities of its `vocabulary` words, the loss of a token is
//
//   (1 - label_smoothing) * -log p(target)
//       + label_smoothing * (mean over all words of -log p(word))
//       + z_loss * (log of the sum of exponentials of its logits)^2
//
// Label smoothing: Szegedy et al., arXiv 1512.00567, section 7. The z-loss
// keeps logits close to those that a softmax needs: Chowdhery et al., PaLM,
// arXiv 2204.02311, section 5.
struct LossTerms {
  double label_smoothing = 0;  // In [0, 1).
  double z_loss = 0;           // At least 0, finite.
  // The number of words on all ranks. Only for label_smoothing.
  int64_t vocabulary = 0;

  friend bool operator==(const LossTerms&, const LossTerms&) = default;
};

namespace op {

// largest[i] = the maximum of row i of logits [tokens, held.size()]; minus
// infinity for an empty row.
struct RowMax {
  static constexpr std::string_view kName = "RowMax";
  ConstTensorView logits;
  TensorView largest;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(logits, largest); }
};

// sum[i] = the sum of exp(logits[i] - largest[i]).
struct SumExp {
  static constexpr std::string_view kName = "SumExp";
  ConstTensorView logits, largest;
  TensorView sum;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(logits, largest, sum); }
};

// RowMax and SumExp, which on a GPU read the logits once (Milakov and
// Gimelshein, arXiv 1805.02867). On the CPU the results have the same bits.
struct MaxAndSumExp {
  static constexpr std::string_view kName = "MaxAndSumExp";
  ConstTensorView logits;
  TensorView largest, sum;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(logits, largest, sum); }
};

// picked[i] = logits[i][targets[i] - held.begin], or 0 if `held` does not
// contain the target.
struct Pick {
  static constexpr std::string_view kName = "Pick";
  ConstTensorView logits;
  IndexRange held;
  ConstTensorView targets;
  TensorView picked;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(logits, targets, picked); }
};

// losses[i] = log(sum[i]) + largest[i] - picked[i], f64, from the statistics of
// all ranks; 0 where targets[i] is negative (kNoTarget).
struct CrossEntropyLosses {
  static constexpr std::string_view kName = "CrossEntropyLosses";
  ConstTensorView largest, sum, picked, targets;
  TensorView losses;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(largest, sum, picked, targets, losses); }
};

// Overwrites `logits` with the gradient of losses and `terms`; scales are f64
// [tokens]. With s = terms.label_smoothing and l = log(sum[i]) + largest[i]:
//   (exp(logits[i] - largest[i]) / sum[i] * (1 + 2 * terms.z_loss * l)
//       - (1 - s) * [targets[i] is this one] - s / terms.vocabulary)
//       * scales[i]
// and zeros where scales[i] is 0 or targets[i] is negative, whatever the
// logits. If `cap` is not 0, the logits are results of SoftCap with that cap,
// and the gradient is that of its input.
struct CrossEntropyGradient {
  static constexpr std::string_view kName = "CrossEntropyGradient";
  ConstTensorView largest, sum;
  IndexRange held;
  ConstTensorView targets, scales;
  LossTerms terms;
  TensorView logits;
  double cap = 0;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(largest, sum, targets, scales, logits); }
};

using CrossEntropy = OperationList<RowMax, SumExp, MaxAndSumExp, Pick,
                                   CrossEntropyLosses, CrossEntropyGradient>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CROSS_ENTROPY_H_
