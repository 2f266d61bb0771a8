// An attention block: its sizes, the ranks that share the positions of its
// sequences, and its forward and backward passes.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/latent_projection.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/rotary.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct AttentionOptions {
  int64_t width = 0;
  int64_t heads = 1;     // Over all ranks; a multiple of kv_heads.
  int64_t kv_heads = 1;  // If fewer than ranks, a divisor of the ranks.
  int64_t head_size = 0;
  // Requires an even head size; nullopt: no rotary positions.
  std::optional<RotaryFrequencies> rotary = RotaryFrequencies();
  bool causal = true;
  bool qkv_bias = false;
  bool output_bias = false;
  // Normalise each head of queries and keys (layers/norm.h) before it is
  // rotated, with one weight for all heads (Qwen3).
  bool qk_norm = false;
  // These norms are over all heads together, with a weight for each element
  // (OLMo 2).
  bool shared_qk_norm = false;
  double norm_epsilon = 1e-5;        // The epsilon of these norms.
  bool sinks = false;                // A trained op::AddSinks of each head.
  std::optional<double> scale = {};  // Default: 1 / sqrt(head_size).
  double cap = 0;                    // AttentionBlock::cap.
  // The number of keys that a query attends to, including its own position; 0:
  // all keys that the mask permits.
  int64_t window = 0;
  DType dtype = DType::kF32;
  // The fp8 scales of the projections (layers/linear_products.h), which count
  // as two layers, or four of latent attention; null: no fp8.
  std::shared_ptr<Fp8Scaling> fp8 = nullptr;
  LoraOptions lora = {};  // For all projections.
  // If kv_rank is not 0, multi-head latent attention: queries, keys and values
  // are projected by way of latent vectors, kv_heads is `heads`, and head_size
  // is latent.head_size(). The core has one size for all heads, so values are
  // padded with zeros to it.
  LatentOptions latent = {};

  bool is_latent() const { return latent.kv_rank > 0; }
  // The part of a head that may be rotated.
  int64_t rotary_size() const { return is_latent() ? latent.rope : head_size; }
  int64_t value_size() const { return is_latent() ? latent.value : head_size; }
};

// The cosines and sines of a rank's positions on the device, for op::Rotate.
// Blocks that are executed one after the other may share them.
class RotaryTables {
 public:
  // `positions` are those of one sequence; all sequences have the same.
  RotaryTables(const TensorGroup& group, std::vector<int64_t> positions)
      : group_(group), positions_(std::move(positions)) {}

  // Statistics of `dtype` [positions, 2 pairs]. The first call for a rotation
  // computes and uploads them, and waits on the host.
  absl::StatusOr<ConstTensorView> Of(const Rotation& rotation, DType dtype);

 private:
  struct Table {
    Rotation rotation;
    Tensor values;
  };

  TensorGroup group_;
  std::vector<int64_t> positions_;
  std::vector<Table> tables_;  // Few: a model has one rotation or two.
};

// The ranks that share the positions of a sequence, with ops on their device; a
// single rank without context parallelism.
struct ContextGroup {
  TensorGroup group;
  SequenceLayout layout;
  // An attention with Attention::CoreOptions. Blocks that are executed one
  // after the other may share it and its memory. Null: each block creates its
  // own with `algorithm`.
  std::shared_ptr<ContextAttention> core = nullptr;
  ContextAlgorithm algorithm = ContextAlgorithm::kRing;
  // Tables of the rank's positions. Null: each block creates its own.
  std::shared_ptr<RotaryTables> rotary = nullptr;
};

// The tokens of a micro-batch that a rank processes.
struct TokenBatch {
  int64_t sequences = 0;
  Partition tokens;  // The rank's tokens, over the tensor group.
};

// The mask of a sliding window on the device, for ContextAttention.
class WindowMask {
 public:
  // A `window` of 0 means no mask. Precondition: `attention` is not null if
  // there is a window.
  WindowMask(const TensorGroup& group, int64_t window,
             std::shared_ptr<ContextAttention> attention)
      : group_(group),
        window_(window),
        attention_(std::move(attention)),
        table_(group.memory(), group.queue()) {}

  // The mask, as Inputs::first_keys. Uploads it, and waits on the host, if no
  // earlier call had as many sequences.
  absl::StatusOr<std::optional<ConstTensorView>> Of(int64_t sequences);

 private:
  TensorGroup group_;
  int64_t window_;
  std::shared_ptr<ContextAttention> attention_;
  ReusableTensor table_;
  std::optional<ConstTensorView> uploaded_;
};

// The activations of the norm of the query or key heads, for a micro-batch.
struct HeadNormActivations : TensorParts<HeadNormActivations> {
  explicit HeadNormActivations(TensorPool& pool)
      : input(pool), state(pool), weight_gradient(pool) {}

  auto parts() { return std::tie(input, state, weight_gradient); }

  PooledTensor input;  // [tokens, its heads, head_size]
  NormState state;
  // The rank's share, [head_size] or, of a shared norm, [its heads, head_size].
  PooledTensor weight_gradient;
};

// The activations of a micro-batch that are kept from forward to backward.
struct AttentionActivations : TensorParts<AttentionActivations> {
  explicit AttentionActivations(TensorPool& pool)
      : qkv(pool),
        query(pool),
        key(pool),
        value(pool),
        output(pool),
        log_sum_exp(pool),
        qkv_gradient(pool),
        sinks_gradient(pool),
        query_norm(pool),
        key_norm(pool),
        latent(pool) {}

  auto parts() {
    return std::tie(qkv, query, key, value, output, log_sum_exp, qkv_gradient,
                    sinks_gradient, query_norm, key_norm, latent);
  }
  // Drops the core's activations, which the backward then recomputes.
  void ClearCore() {
    output.Release();
    log_sum_exp.Release();
  }

  // [tokens, its columns]: the projection, with queries and keys rotated in
  // place. With norms of heads and with latent attention it is not kept, but
  // the three parts are.
  PooledTensor qkv;
  PooledTensor query;  // [tokens, its heads, head_size], rotated.
  PooledTensor key;    // [tokens, its kv heads, head_size], rotated.
  PooledTensor value;
  PooledTensor output;       // [tokens, its heads, head_size]
  PooledTensor log_sum_exp;  // [tokens, its heads], statistics.
  PooledTensor qkv_gradient;
  PooledTensor sinks_gradient;  // The rank's share, [its heads], statistics.
  HeadNormActivations query_norm, key_norm;  // Empty without norms.
  LatentActivations latent;                  // Empty without latent attention.
  // A mask of the micro-batch (ContextAttention::Inputs::first_keys), which
  // replaces the mask of the options' window. Set before the forward; the
  // caller keeps its memory until the last backward.
  std::optional<ConstTensorView> first_keys = {};
};

// The part of an attention block between its two projections: cuts the heads
// out of the fused projection, rotates them and attends, for all sequences of a
// micro-batch together.
class AttentionCore {
 public:
  // Errors as for Attention::Create.
  static absl::StatusOr<AttentionCore> Create(const TensorGroup& group,
                                              const ContextGroup& context,
                                              const AttentionOptions& options);
  static absl::StatusOr<ContextAttentionOptions> OptionsOf(
      const TensorGroup& group, const AttentionOptions& options);

  // The partition of the fused projection: queries, keys, values.
  const FusedPartition& partition() const { return partition_; }
  const std::shared_ptr<ContextAttention>& attention() const {
    return attention_;
  }
  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const;

  // True if heads are used where the projection has them (activations.qkv).
  bool cuts_heads_in_place() const {
    return !options_.is_latent() && norms_.empty();
  }
  // Rotates the heads of the result of the projection, or sets query, key and
  // value from it.
  absl::Status SetHeads(const TokenBatch& batch, TensorView qkv,
                        AttentionActivations& activations);
  // FailedPrecondition unless a forward has set them.
  absl::Status CheckHeads(const AttentionActivations& activations,
                          const char* pass) const;
  // Computes output and log_sum_exp from the heads.
  absl::Status Attend(const TokenBatch& batch,
                      AttentionActivations& activations);
  // Computes qkv_gradient from the gradient of the output, [tokens, its heads x
  // head_size]; releases tensors that are no longer needed.
  absl::Status Backward(const TokenBatch& batch,
                        ConstTensorView output_gradient,
                        AttentionActivations& activations);
  // Adds to the gradients of the norms' weights and the sinks, after Backward.
  absl::Status BackwardWeight(AttentionActivations& activations);
  absl::Status FinishGradients();

  // From now on forwards raise `scores`, statistics of [heads().size()], to the
  // largest scores that this rank computes (op::MaxScores); with nullopt they
  // do not.
  void SetMaxScores(std::optional<TensorView> scores) { max_scores_ = scores; }
  // The rank's heads of queries.
  IndexRange heads() const {
    const IndexRange rows = partition_.RangeOf(0, group_.rank());
    return {rows.begin / options_.head_size, rows.end / options_.head_size};
  }

  // The norms of the query and key heads; empty without qk_norm.
  std::vector<RmsNorm>& norms() { return norms_; }
  // The sinks of the rank's heads; null without sinks.
  Parameter* sinks() { return sinks_ ? &*sinks_ : nullptr; }

 private:
  AttentionCore(const TensorGroup& group, const ContextGroup& context,
                const AttentionOptions& options,
                const ContextAttentionOptions& local, FusedPartition partition,
                std::vector<RmsNorm> norms, std::optional<Parameter> sinks,
                std::shared_ptr<ContextAttention> attention)
      : group_(group),
        options_(options),
        local_(local),
        partition_(std::move(partition)),
        positions_(context.layout.SizeOf(context.group.rank())),
        rotary_(
            context.rotary != nullptr
                ? context.rotary
                : std::make_shared<RotaryTables>(
                      group, context.layout.PositionsOf(context.group.rank()))),
        rotation_(options.rotary.has_value()
                      ? options.rotary->Of(options.rotary_size(),
                                           context.layout.length())
                      : Rotation()),
        mask_(group, attention == nullptr ? 0 : options.window, attention),
        norms_(std::move(norms)),
        sinks_(std::move(sinks)),
        attention_(std::move(attention)) {}

  absl::StatusOr<TensorView> ReserveHeads(const TokenBatch& batch,
                                          int64_t heads,
                                          PooledTensor& memory) const;
  absl::StatusOr<TensorView> PartOf(TensorView qkv, int64_t part) const;
  // Heads [tokens, heads, d] as the rows of their norm: [tokens * heads, d], or
  // [tokens, heads * d] for a shared norm.
  template <typename View>
  absl::StatusOr<View> NormRows(const View& heads) const {
    const int64_t tokens = heads.shape()[0], count = heads.shape()[1],
                  d = heads.shape()[2];
    return options_.shared_qk_norm ? heads.Reshape({{tokens, count * d}})
                                   : heads.Reshape({{tokens * count, d}});
  }
  // x [tokens, ...] as [sequences, positions, ...].
  template <typename View>
  absl::StatusOr<View> BySequence(const TokenBatch& batch,
                                  const View& x) const {
    std::vector<int64_t> shape = {batch.sequences, positions_};
    shape.insert(shape.end(), x.shape().begin() + 1, x.shape().end());
    return x.Reshape(shape);
  }
  absl::StatusOr<ContextAttention::Inputs> InputsOf(
      const TokenBatch& batch, const AttentionActivations& activations);
  // The heads in the rows of a projection or of its gradient, by sequence.
  absl::StatusOr<ContextAttention::Gradients> HeadsIn(
      const TokenBatch& batch, const TensorView& qkv) const;
  // Rotates the queries and keys in such rows.
  absl::Status RotateIn(bool inverse, const TensorView& qkv);
  // Sets the normalised heads `x` of queries or keys from their part of the
  // projection.
  absl::Status SetNormalised(const TokenBatch& batch, ConstTensorView from,
                             RmsNorm& norm, HeadNormActivations& activations,
                             TensorView x);
  // Replaces the gradient of normalised heads by the gradient of the norm's
  // input.
  absl::Status NormGradient(RmsNorm& norm, TensorView gradient,
                            HeadNormActivations& activations);
  absl::Status Rotate(bool inverse, TensorView x);
  absl::Status ApplySinks(TensorView output, TensorView log_sum_exp,
                          TensorPool& pool);
  absl::Status SetSinksGradient(ConstTensorView output_gradient,
                                AttentionActivations& activations);
  absl::Status AddShare(PooledTensor& share, TensorView gradient);
  absl::Status Propagate(const TokenBatch& batch,
                         ConstTensorView output_gradient,
                         const AttentionActivations& activations,
                         const ContextAttention::Gradients& gradients);
  // Computes the gradients of the heads in the gradient of the projection.
  absl::Status BackwardInPlace(const TokenBatch& batch,
                               ConstTensorView output_gradient,
                               AttentionActivations& activations);
  // Latent attention: converts between the projection [q | k, v by head | r]
  // and heads [r | others] of queries and keys, and padded values.
  using Heads = ContextAttention::Gradients;
  absl::Status MoveLatent(TensorView fused, const Heads& heads, bool back);
  absl::Status SetLatentHeads(const TokenBatch& batch, TensorView fused,
                              AttentionActivations& activations);
  absl::Status SetLatentGradient(const TokenBatch& batch,
                                 const Heads& gradients, TensorView fused,
                                 TensorPool& pool);
  absl::StatusOr<ConstTensorView> Padded(const TokenBatch& batch,
                                         ConstTensorView values,
                                         PooledTensor& memory);
  // The columns of the rank's projection.
  int64_t fused_size() const {
    return options_.is_latent() ? options_.latent.FusedSize(local_.heads)
                                : partition_.SizeOf(group_.rank());
  }
  absl::Status SetQkvGradient(const TokenBatch& batch,
                              const ContextAttention::Gradients& gradients,
                              AttentionActivations& activations);

  TensorGroup group_;
  AttentionOptions options_;
  ContextAttentionOptions local_;  // For the heads of this rank.
  FusedPartition partition_;
  int64_t positions_;  // Those of a sequence on this rank.
  std::shared_ptr<RotaryTables> rotary_;
  Rotation rotation_;
  WindowMask mask_;
  std::optional<TensorView> max_scores_;
  std::vector<RmsNorm> norms_;  // For queries and keys, or empty.
  std::optional<Parameter> sinks_;
  std::shared_ptr<ContextAttention> attention_;  // None without heads.
};

// Grouped-query self-attention with rotary positions, including its input and
// output projections, over a tensor group that shares the heads and a context
// group that shares the positions.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Zigzag(4096, cp));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto attention,
//       Attention::Create(group, {context_group, layout},
//                         {.width = 512, .heads = 8, .kv_heads = 2,
//                          .head_size = 64}));
//   AttentionActivations activations(pool);           // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(attention.Forward(batch, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(attention.BackwardInput(batch, dy, dx,
//                                                   activations));
//   TESSERA_RETURN_IF_ERROR(attention.BackwardWeight(batch, dy, x,
//                                                    activations));
//   TESSERA_RETURN_IF_ERROR(attention.FinishGradients());   // once a step
//
// A rank's tokens are those at its positions in the layout, of the first
// sequence, then of the second, and so on. x, y and their gradients are
// [tokens, width] of one dtype, the same on every rank of the tensor group;
// under sequence parallelism they are the rank's part of the tokens (Balanced).
// Gradients of weights cover only the rank's positions: the caller must sum
// them over the context group as over data-parallel ranks. Calls are
// collectives of both groups. Weights:
//
//   qkv.weight      [(heads + 2 kv_heads) head_size, width]   q_proj, then
//                   k_proj, then v_proj of Llama; a rank that has a part of the
//                   heads has three ranges of rows, and kv heads that several
//                   ranks hold are of the first of them (ParameterRows)
//   output.weight   [width, heads head_size]                  o_proj
//                   latent attention: [width, heads value]; and the weights of
//                   LatentProjection in place of qkv.weight
//   sinks           [heads], with sinks; self_attn.sinks
//   query_norm.weight, key_norm.weight   [head_size], with qk_norm, or [heads
//                   head_size] and [kv_heads head_size], if it is shared; every
//                   rank has them
class Attention {
 public:
  // A collective of both groups. InvalidArgument if the heads cannot be divided
  // among the ranks, the head size is odd with rotary positions, or the core or
  // layout does not match the options or the ranks.
  static absl::StatusOr<Attention> Create(const TensorGroup& group,
                                          const ContextGroup& context,
                                          const AttentionOptions& options);

  // The options of a core for the heads of the rank. With more ranks than heads
  // some ranks have 0 heads and no core.
  static absl::StatusOr<ContextAttentionOptions> CoreOptions(
      const TensorGroup& group, const AttentionOptions& options) {
    return AttentionCore::OptionsOf(group, options);
  }

  // Null if the rank has no heads.
  // See AttentionCore.
  void SetMaxScores(std::optional<TensorView> scores) {
    core_.SetMaxScores(scores);
  }
  IndexRange heads() const { return core_.heads(); }
  const std::shared_ptr<ContextAttention>& core() const {
    return core_.attention();
  }
  // Appends "prefix.qkv.weight" and so on. The pointers are valid until the
  // layer is moved.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // InvalidArgument if `sequences` is negative.
  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const {
    return core_.BatchOf(sequences);
  }

  // FailedPrecondition, here and below, if required weights or gradients are
  // released, or required activations are missing.
  absl::Status Forward(const TokenBatch& batch, ConstTensorView x, TensorView y,
                       AttentionActivations& activations);
  // Stores the tensors that BackwardWeight needs in the activations.
  // BackwardWeight adds to the gradients of the weights.
  absl::Status BackwardInput(const TokenBatch& batch,
                             ConstTensorView y_gradient, TensorView x_gradient,
                             AttentionActivations& activations);
  absl::Status BackwardWeight(const TokenBatch& batch,
                              ConstTensorView y_gradient, ConstTensorView x,
                              AttentionActivations& activations);
  // Both passes; overlaps the computation of weight gradients with the
  // communication of input gradients.
  absl::Status Backward(const TokenBatch& batch, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient,
                        AttentionActivations& activations);

  absl::Status FinishGradients();

 private:
  Attention(const TensorGroup& group, const AttentionOptions& options,
            AttentionCore core, RowParallelLinear output)
      : group_(group),
        options_(options),
        core_(std::move(core)),
        output_(std::move(output)) {}

  absl::Status CreateProjection();
  absl::Status CheckValues();
  absl::Status CheckGradients();
  absl::StatusOr<ConstTensorView> OutputOf(
      const AttentionActivations& activations, PooledTensor& memory) const;
  absl::Status AttendAgain(const TokenBatch& batch,
                           AttentionActivations& activations);

  TensorGroup group_;
  AttentionOptions options_;
  AttentionCore core_;
  // One of the two.
  std::optional<ColumnParallelLinear> qkv_;
  std::optional<LatentProjection> latent_;
  RowParallelLinear output_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_
