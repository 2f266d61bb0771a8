// Linear layers over the ranks of a tensor group: the weights of
// ColumnParallelLinear are divided by outputs, those of RowParallelLinear by
// inputs, and every rank has those of ReplicatedLinear.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/chunked_collectives.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// A rank's part of a linear layer: the weights, their adapter and the products.
// ColumnParallelLinear and RowParallelLinear add the communication.
class LinearPart {
 public:
  LinearWeights& weights() { return weights_; }
  LoraAdapter* adapter() { return adapter_ ? &*adapter_ : nullptr; }
  // Appends the parameters of the weights and the adapter.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;

 protected:
  // `outputs` are the rank's outputs of the whole layer. No adapter for a LoRA
  // rank of 0.
  static absl::StatusOr<LinearPart> Create(const TensorGroup& group,
                                           LinearWeights weights,
                                           const LoraOptions& lora,
                                           LoraAdapter::Divided divided,
                                           std::vector<IndexRange> outputs,
                                           std::shared_ptr<Fp8Scaling> fp8);

  // False if neither the weights nor the adapter are trained.
  bool HasGradients();

  // For some tokens: y = x w^T, x_gradient = y_gradient w, and the addition of
  // y_gradient^T x to the gradient of w, with the adapter's part.
  absl::Status SetOutput(ConstTensorView x, TensorView y);
  absl::Status SetInputGradient(ConstTensorView y_gradient,
                                TensorView x_gradient);
  absl::Status AddWeightGradient(ConstTensorView y_gradient, ConstTensorView x);
  // No-ops without a bias, or without a trained one.
  absl::Status AddBias(TensorView y);
  absl::Status AddBiasGradient(ConstTensorView y_gradient);

  // Under sequence parallelism gathers the tokens of all ranks into `all`
  // [tokens, width]; otherwise `mine` has all tokens.
  absl::StatusOr<ChunkedGather> StartGather(std::string_view name,
                                            const Partition& tokens,
                                            ConstTensorView mine, int64_t width,
                                            ReusableTensor& all);
  // Sums what `compute` sets over the ranks into `sums`: all tokens, or under
  // sequence parallelism, by way of `all` [tokens, width], the rank's own.
  absl::StatusOr<ChunkedSums> StartSums(std::string_view name,
                                        const Partition& tokens,
                                        TensorView sums, int64_t width,
                                        ReusableTensor& all,
                                        ChunkedSums::Compute compute);

  TensorGroup group_;
  LinearWeights weights_;
  std::optional<LoraAdapter> adapter_;
  LinearProducts products_;

 private:
  LinearPart(const TensorGroup& group, LinearWeights weights,
             std::optional<LoraAdapter> adapter, LinearProducts products)
      : group_(group),
        weights_(std::move(weights)),
        adapter_(std::move(adapter)),
        products_(std::move(products)) {}
};

struct ColumnParallelOptions {
  int64_t in = 0;
  int64_t out = 0;  // Over all ranks.
  bool bias = false;
  DType dtype = DType::kF32;
  // Compute products in fp8 (linear_products.h), for f32 and bf16; null: in
  // `dtype`.
  std::shared_ptr<Fp8Scaling> fp8 = nullptr;
  // The projections that are fused into one matrix (QkvParts, GatedMlpParts);
  // their sizes add up to `out`. Empty: a single, evenly divided projection.
  std::vector<FusedPart> parts = {};
  // If lora.rank is above 0, the layer has an adapter, which is trained while
  // the other weights are frozen.
  LoraOptions lora = {};
};

// A layer y = x w^T + b of which each rank has some of the outputs (Shoeybi et
// al., Megatron-LM, arXiv 1909.08053, section 3).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto up,
//       ColumnParallelLinear::Create(group, {.in = 512, .out = 2048}));
//   TESSERA_RETURN_IF_ERROR(up.Forward(tokens, x, y));
//   TESSERA_RETURN_IF_ERROR(up.Backward(tokens, y_gradient, x, x_gradient));
//   TESSERA_RETURN_IF_ERROR(up.FinishGradients());      // once a step
//
//   tensor        every rank has               under sequence parallelism
//   x, gradient   [tokens, in], the same       [its tokens, in]
//   y, gradient   [tokens, its outputs]        [tokens, its outputs]
//
// The forward communicates nothing (or gathers x); the backward sums the
// gradient of x over the ranks (or scatters its sums). BackwardInput and
// BackwardWeight are separate for schedules that split them (arXiv 2401.10241).
// Backward executes both, and overlaps the gradient of the weights with the
// communication of the gradient of x. With TensorGroup::WithOverlapChunks,
// tokens are gathered and sums are sent in chunks, so that the communication of
// some chunks overlaps the products of others (chunked_collectives.h).
//
// `tokens` is the partition of the tokens over the ranks under sequence
// parallelism; otherwise only their number matters. Calls are collectives of
// the group, one at a time. Weights and tensors have one dtype.
class ColumnParallelLinear : public LinearPart {
 public:
  // A collective if several ranks hold the same part. InvalidArgument if a size
  // or the number of chunks is negative, or the parts do not add up to `out`.
  static absl::StatusOr<ColumnParallelLinear> Create(
      const TensorGroup& group, const ColumnParallelOptions& options);

  int64_t local_out() const { return weights_.out(); }
  const FusedPartition& partition() const { return partition_; }

  // The tensors of a call must not overlap. InvalidArgument if a shape does not
  // match the layer and the tokens; FailedPrecondition if required weights or
  // gradients are released (parameter.h).
  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       TensorView y);
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x);
  absl::Status Backward(const Partition& tokens, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient);

  // Call it after the last backward: sums the gradients of outputs that several
  // ranks hold (kv heads, if there are fewer than ranks).
  absl::Status FinishGradients();

 private:
  ColumnParallelLinear(LinearPart part, const ColumnParallelOptions& options,
                       FusedPartition partition)
      : LinearPart(std::move(part)),
        options_(options),
        partition_(std::move(partition)) {}

  absl::Status JoinSharers();
  absl::Status SumSharedRows(Parameter& parameter);
  absl::StatusOr<ChunkedGather> GatherInputs(const Partition& tokens,
                                             ConstTensorView x) {
    return StartGather("x", tokens, x, options_.in, all_x_);
  }
  absl::Status AddWeightGradients(ConstTensorView y_gradient,
                                  ChunkedGather& gather);
  absl::StatusOr<ChunkedSums> StartBackwardInput(const Partition& tokens,
                                                 ConstTensorView y_gradient,
                                                 TensorView x_gradient);

  // The ranks that hold the same outputs of a replicated part.
  struct Sharers {
    size_t part = 0;
    std::unique_ptr<collectives::Communicator> communicator;
  };

  ColumnParallelOptions options_;
  FusedPartition partition_;
  std::vector<Sharers> sharers_;
  ReusableTensor all_x_ = group_.Working("all tokens of x");
  ReusableTensor all_x_gradient_ = group_.Working("all tokens of x's gradient");
};

struct RowParallelOptions {
  int64_t in = 0;  // Over all ranks.
  int64_t out = 0;
  // The inputs of this rank; each input belongs to one rank.
  IndexRange columns = {};
  bool bias = false;
  DType dtype = DType::kF32;
  std::shared_ptr<Fp8Scaling> fp8 = nullptr;
  LoraOptions lora = {};
};

// A layer y = x w^T + b of which each rank has some of the inputs: those that
// the previous layer computed on it (Shoeybi et al., arXiv 1909.08053, section
// 3).
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
// ranks; the backward communicates nothing (or gathers the gradient of y). The
// bias is added once, after the sum. Otherwise like ColumnParallelLinear.
class RowParallelLinear : public LinearPart {
 public:
  // InvalidArgument if a size or the number of chunks is negative, or `columns`
  // is not within [0, in).
  static absl::StatusOr<RowParallelLinear> Create(
      const TensorGroup& group, const RowParallelOptions& options);

  int64_t local_in() const { return weights_.in(); }

  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       TensorView y);
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x);
  // Both passes, with a single all-gather.
  absl::Status Backward(const Partition& tokens, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient);

  // Call it after the last backward: under sequence parallelism, sums the
  // gradient of the bias over the ranks, because each rank has only its own
  // tokens.
  absl::Status FinishGradients();

 private:
  RowParallelLinear(LinearPart part, const RowParallelOptions& options)
      : LinearPart(std::move(part)), options_(options) {}

  absl::StatusOr<ChunkedGather> GatherGradient(const Partition& tokens,
                                               ConstTensorView y_gradient) {
    return StartGather("the gradient of y", tokens, y_gradient, options_.out,
                       all_y_);
  }

  RowParallelOptions options_;
  ReusableTensor all_y_ = group_.Working("all tokens of y");
};

struct ReplicatedOptions {
  int64_t in = 0;
  std::vector<int64_t> outs = {};  // Of the projections that are fused.
  DType dtype = DType::kF32;
  std::shared_ptr<Fp8Scaling> fp8 = nullptr;
  LoraOptions lora = {};
};

// A layer y = x w^T whose weights every rank has whole. Each rank computes the
// results of the tokens that it has between layers: all tokens, or its own
// under sequence parallelism. The passes do not communicate.
class ReplicatedLinear {
 public:
  // InvalidArgument if a size is negative.
  static absl::StatusOr<ReplicatedLinear> Create(
      const TensorGroup& group, const ReplicatedOptions& options);

  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;
  int64_t out() const { return weight_.shape()[0]; }

  absl::Status Forward(ConstTensorView x, TensorView y);
  // Adds to x_gradient if `accumulate` is true.
  absl::Status BackwardInput(ConstTensorView y_gradient, TensorView x_gradient,
                             bool accumulate);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(ConstTensorView y_gradient, ConstTensorView x);

  // Call it after the last backward: under sequence parallelism, sums the
  // gradients over the ranks.
  absl::Status FinishGradients();

 private:
  ReplicatedLinear(const TensorGroup& group, Parameter weight,
                   std::optional<LoraAdapter> adapter, LinearProducts products)
      : group_(group),
        weight_(std::move(weight)),
        adapter_(std::move(adapter)),
        products_(std::move(products)) {}

  TensorGroup group_;
  Parameter weight_;
  std::optional<LoraAdapter> adapter_;
  LinearProducts products_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_H_
