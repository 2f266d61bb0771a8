// LatentProjection: queries, keys and values by way of latent vectors, for
// multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_LATENT_PROJECTION_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_LATENT_PROJECTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct LatentOptions {
  // The sizes of the latent vectors: of queries, or 0 if queries are projected
  // from x; of keys and values, or 0 without latent attention.
  int64_t query_rank = 0;
  int64_t kv_rank = 0;
  // The elements of a head of queries and keys without a position, and of those
  // that are rotated, which all heads of keys share; those of a value.
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  // Positions turn the pairs (2i, 2i + 1); otherwise (i, i + rope / 2).
  bool interleaved = true;
  double norm_epsilon = 1e-6;

  int64_t head_size() const { return nope + rope; }
  // The columns of LatentProjection's y for this number of heads.
  int64_t FusedSize(int64_t heads) const {
    return heads * (head_size() + nope + value) + rope;
  }
};

// The place of heads in the rows of a contiguous tensor: the first element of
// the first head, the distance between heads, and the elements of a head.
// `pairs`: adjacent elements are pairs, whose first elements come first in
// HeadsAt.
struct HeadColumns {
  int64_t begin = 0;
  int64_t step = 0;
  int64_t size = 0;
  bool pairs = false;
};

// The heads as [rows, heads, 2, size / 2] for an even size, otherwise [rows,
// heads, 1, size].
template <typename View>
absl::StatusOr<View> HeadsAt(const View& rows, int64_t heads,
                             const HeadColumns& at) {
  const int64_t halves = at.size % 2 == 0 ? 2 : 1;
  const int64_t half = at.size / halves;
  TESSERA_ASSIGN_OR_RETURN(
      Layout layout,
      Layout::Strided({{rows.shape()[0], heads, halves, half}},
                      {{rows.strides()[0], at.step, at.pairs ? 1 : half,
                        at.pairs ? halves : 1}}));
  return View::Create({rows.data(), static_cast<size_t>(rows.size_in_bytes())},
                      rows.dtype(), std::move(layout), at.begin, rows.kind());
}

// A latent vector of a micro-batch, for the rank's tokens between layers.
struct LatentVector : TensorParts<LatentVector> {
  explicit LatentVector(TensorPool& pool)
      : value(pool), state(pool), gradient(pool) {}

  auto parts() { return std::tie(value, state, gradient); }

  PooledTensor value;  // [tokens, rank], normalised.
  NormState state;
  PooledTensor gradient;  // BackwardInput leaves it.
};

// The activations of a micro-batch that are kept from forward to backward.
struct LatentActivations : TensorParts<LatentActivations> {
  explicit LatentActivations(TensorPool& pool)
      : down(pool), query(pool), kv(pool), down_gradient(pool) {}

  auto parts() { return std::tie(down, query, kv, down_gradient); }

  PooledTensor down;  // [tokens, query_rank + kv_rank + rope], without norms.
  LatentVector query, kv;
  PooledTensor down_gradient;  // BackwardInput leaves it.
};

// Computes, for each token x,
//
//   c = latent_down x,    of which c_q, c_kv and r are parts
//   q = query_up norm(c_q), or query_up x without query_rank
//   k, v of each head = kv_up norm(c_kv)
//
// and y = [q | k, v by head | r], where r are the elements of keys that are
// rotated, for the heads of the rank. Tensors, passes and `tokens` are as for
// ColumnParallelLinear. Weights:
//
//   latent_down.weight  [query_rank + kv_rank + rope, width]   q_a_proj, then
//                       kv_a_proj_with_mqa of DeepSeek; every rank has it
//   query_up.weight     [heads (nope + rope), query_rank or width]  q_b_proj or
//                       q_proj
//   kv_up.weight        [heads (nope + value), kv_rank]        kv_b_proj
//   query_norm.weight, key_norm.weight  q_a_layernorm, kv_a_layernorm
//
// With an adapter each of DeepSeek's projections has its own.
//
// Each rank computes the latent vectors of all tokens, or of its own under
// sequence parallelism, where they are gathered in place of x.
class LatentProjection {
 public:
  struct Options {
    int64_t width = 0;
    int64_t heads = 1;  // Over all ranks.
    LatentOptions latent = {};
    DType dtype = DType::kF32;
    // For the three projections, which count as three layers of fp8.
    std::shared_ptr<Fp8Scaling> fp8 = nullptr;
    LoraOptions lora = {};
  };

  // InvalidArgument if a size is not positive, or `rope` is odd.
  static absl::StatusOr<LatentProjection> Create(const TensorGroup& group,
                                                 const Options& options);

  // Appends the weights of the projections, and those of the norms.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);
  void AppendNorms(std::string_view prefix,
                   std::vector<Parameter*>& parameters);
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;
  // The columns of y on this rank.
  int64_t local_out() const {
    return query_up_.local_out() + kv_up_.local_out() + options_.latent.rope;
  }

  // Calls are collectives of the tensor group, one at a time.
  // FailedPrecondition if required weights or gradients are released, or a pass
  // comes before the one that fills its activations.
  absl::Status Forward(const Partition& tokens, ConstTensorView x, TensorView y,
                       LatentActivations& activations);
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient,
                             LatentActivations& activations);
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x,
                              LatentActivations& activations);

  // Call it after the last backward of a step. A collective under sequence
  // parallelism.
  absl::Status FinishGradients();

 private:
  LatentProjection(const TensorGroup& group, const Options& options,
                   ReplicatedLinear down, std::optional<RmsNorm> query_norm,
                   ColumnParallelLinear query_up, RmsNorm kv_norm,
                   ColumnParallelLinear kv_up)
      : group_(group),
        options_(options),
        down_(std::move(down)),
        query_norm_(std::move(query_norm)),
        query_up_(std::move(query_up)),
        kv_norm_(std::move(kv_norm)),
        kv_up_(std::move(kv_up)) {}

  // Ranges of columns: of the latents in `down`, and of their results in y.
  IndexRange query_columns() const { return {0, options_.latent.query_rank}; }
  IndexRange kv_columns() const {
    return {options_.latent.query_rank,
            options_.latent.query_rank + options_.latent.kv_rank};
  }
  IndexRange rope_columns() const {
    return {kv_columns().end, kv_columns().end + options_.latent.rope};
  }
  IndexRange PartColumns(int part) const;

  absl::Status RaiseLatent(const Partition& tokens, IndexRange columns,
                           RmsNorm& norm, ColumnParallelLinear& up,
                           TensorView y, const LatentActivations& activations,
                           LatentVector& latent);
  absl::Status LowerGradient(const Partition& tokens, IndexRange columns,
                             RmsNorm& norm, ColumnParallelLinear& up,
                             ConstTensorView y_gradient,
                             const LatentActivations& activations,
                             LatentVector& latent);
  absl::Status ShareRope(const Partition& tokens, ConstTensorView mine,
                         TensorView all, TensorPool& pool) const;
  absl::Status SumRope(const Partition& tokens, ConstTensorView all,
                       TensorView mine, TensorPool& pool) const;

  TensorGroup group_;
  Options options_;
  ReplicatedLinear down_;
  std::optional<RmsNorm> query_norm_;  // Null without query_rank.
  ColumnParallelLinear query_up_;
  RmsNorm kv_norm_;
  ColumnParallelLinear kv_up_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_LATENT_PROJECTION_H_
