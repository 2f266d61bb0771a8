// RowParallelLinear: y = x w^T + b, where each rank has some of the inputs, as
// the layer before it left them (Shoeybi et al., arXiv 1909.08053, section 3).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto down, RowParallelLinear::Create(
//           group, {.in = 2048, .out = 512, .columns = {0, 1024}}));
//
//   tensor        every rank has               under sequence parallelism
//   x, gradient   [tokens, its inputs]         [tokens, its inputs]
//   y, gradient   [tokens, out], the same      [its tokens, out]
//
// The forward sums y over the ranks (or scatters its sums), in the order of
// ranks; the backward moves nothing (or gathers the gradient of y). The bias is
// added once, after the sum. Otherwise as ColumnParallelLinear.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_ROW_PARALLEL_LINEAR_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_ROW_PARALLEL_LINEAR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/chunked_gather.h"
#include "tensor_parallel/layers/linear_weights.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/sharding/index_range.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct RowParallelOptions {
  int64_t in = 0;  // Of all ranks.
  int64_t out = 0;
  // The inputs of this rank: each is one rank's.
  IndexRange columns = {};
  bool bias = false;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
  // As of ColumnParallelOptions.
  int64_t overlap_chunks = 0;
};

class RowParallelLinear {
 public:
  // InvalidArgument where a size or the number of chunks is negative or
  // `columns` are not within `in`.
  static absl::StatusOr<RowParallelLinear> Create(
      const TensorGroup& group, const RowParallelOptions& options);

  LinearWeights& weights() { return weights_; }
  int64_t local_in() const { return weights_.in(); }

  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       TensorView y);
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x);
  // Both, with one gathering.
  absl::Status Backward(const Partition& tokens, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient);

  // After the last backward: under sequence parallelism the gradient of the
  // bias is summed over the ranks, each of which has seen its own tokens only.
  absl::Status FinishGradients();

 private:
  RowParallelLinear(const TensorGroup& group, const RowParallelOptions& options,
                    LinearWeights weights)
      : group_(group), options_(options), weights_(std::move(weights)) {}

  absl::Status Multiply(const Partition& tokens, ConstTensorView x,
                        TensorView y);
  absl::StatusOr<ChunkedGather> StartGather(const Partition& tokens,
                                            ConstTensorView y_gradient);
  absl::Status SetInputGradient(IndexRange tokens, ConstTensorView y_gradient,
                                TensorView x_gradient);
  absl::Status AddWeightGradient(IndexRange tokens, ConstTensorView y_gradient,
                                 ConstTensorView x);
  absl::Status AddBiasGradient(ConstTensorView y_gradient);

  TensorGroup group_;
  RowParallelOptions options_;
  LinearWeights weights_;
  ReusableTensor all_y_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_ROW_PARALLEL_LINEAR_H_
