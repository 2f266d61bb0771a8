// RMS normalisation of tokens over the ranks of a tensor group.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct NormOptions {
  int64_t width = 0;
  double epsilon = 1e-5;
  DType dtype = DType::kF32;
  // Rows are heads, of which each rank has some, so that the gradient of the
  // weight must be summed over the ranks even without sequence parallelism.
  bool rows_are_heads = false;
  // If given, each rank has only these columns of the rows, whose statistics
  // are summed over the ranks, and `copies` ranks have the same column. The
  // gradient of the weight, which all ranks have as a whole, is summed too.
  std::optional<IndexRange> columns = {};
  int64_t copies = 1;
};

// The statistics that a norm keeps from a forward to its backward.
struct NormState : TensorParts<NormState> {
  // `pool` must outlive the state.
  explicit NormState(TensorPool& pool) : inverse(pool) {}

  auto parts() { return std::tie(inverse); }

  PooledTensor inverse;  // 1 / the root. [rows], statistics.
};

// Computes y = x / sqrt(mean(x^2) + epsilon) * weight for each token (Zhang and
// Sennrich, arXiv 1910.07467), on ranks that all have the weight.
//
//   TESSERA_ASSIGN_OR_RETURN(auto norm,
//                            RmsNorm::Create(group, {.width = 512}));
//   NormState state(pool);                            // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(norm.Forward(x, y, state));
//   TESSERA_RETURN_IF_ERROR(norm.BackwardInput(dy, x, state, dx));
//   TESSERA_RETURN_IF_ERROR(norm.BackwardWeight(dy, x, state));
//   TESSERA_RETURN_IF_ERROR(norm.FinishGradients());  // once a step
//
// x, y and their gradients are [tokens, width] of one dtype: all tokens, the
// same on every rank, or under sequence parallelism those of the rank. y may be
// x if no backward follows, and x_gradient may be the gradient. Only
// FinishGradients communicates, and with `columns` Forward and BackwardInput,
// which then sum a number a token. If several ranks have a copy of a column,
// the sum of their gradients is the column's. The weight is initialised to
// ones.
class RmsNorm {
 public:
  // InvalidArgument if the width or epsilon is negative, or the type is not
  // f64, f32, bf16 or f16.
  static absl::StatusOr<RmsNorm> Create(const TensorGroup& group,
                                        const NormOptions& options);

  Parameter& weight() { return weight_; }
  // The columns of the rank; [0, width) unless NormOptions::columns are given.
  IndexRange columns() const {
    return options_.columns.value_or(IndexRange{0, options_.width});
  }
  // Appends "prefix.weight". The pointer is valid until the norm is moved or
  // destroyed.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // All passes except FinishGradients return FailedPrecondition if the weight,
  // or its gradient, is released, or if `state` was not set by a forward.
  absl::Status Forward(ConstTensorView x, TensorView y, NormState& state);
  absl::Status BackwardInput(ConstTensorView gradient, ConstTensorView x,
                             const NormState& state, TensorView x_gradient);
  // AddForward first computes x += residual; AddBackwardInput adds the
  // residual's gradient to x_gradient. The results have the same bits as with
  // separate additions.
  absl::Status AddForward(ConstTensorView residual, TensorView x, TensorView y,
                          NormState& state);
  absl::Status AddBackwardInput(ConstTensorView gradient, ConstTensorView x,
                                const NormState& state,
                                ConstTensorView residual_gradient,
                                TensorView x_gradient);
  // AddBackwardInput and BackwardWeight, with the same bits, in one pass.
  absl::Status AddBackward(ConstTensorView gradient, ConstTensorView x,
                           const NormState& state,
                           ConstTensorView residual_gradient,
                           TensorView x_gradient);
  // Adds to the gradient of the weight.
  absl::Status BackwardWeight(ConstTensorView gradient, ConstTensorView x,
                              const NormState& state);

  // The same, but adds to `sum` [columns], which has the type of x or of its
  // statistics, and does not require the gradient of the weight.
  absl::Status WeightGradient(ConstTensorView gradient, ConstTensorView x,
                              const NormState& state, TensorView sum);

  // Call it after the last backward of a step. A collective under sequence
  // parallelism.
  absl::Status FinishGradients();

 private:
  // The weights of the rank's columns.
  absl::StatusOr<ConstTensorView> Weights() const {
    return ConstTensorView(weight_.value())
        .Narrow(0, columns().begin, columns().size());
  }
  RmsNorm(const TensorGroup& group, const NormOptions& options,
          Parameter weight)
      : group_(group), options_(options), weight_(std::move(weight)) {}

  TensorGroup group_;
  NormOptions options_;
  Parameter weight_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_
