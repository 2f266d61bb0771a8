// A block of a Llama-like model (TransformerBlock), its options and its
// activations.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

// The activations that a block recomputes in its backward instead of keeping
// them (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv
// 2205.05198, section 5). Outputs and gradients have the same bits.
enum class Recompute {
  kNone,       // Nothing; all activations are kept.
  kSelective,  // The core of the attention, whose output is not kept.
  kFull,       // Everything; only the block's input is kept.
};

// "none", "selective", "full".
constexpr std::string_view RecomputeName(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "unknown";
}

inline std::ostream& operator<<(std::ostream& os, Recompute recompute) {
  return os << RecomputeName(recompute);
}

// The activations of the norm of a sublayer's output; empty without such norms.
struct OutputNormActivations : TensorParts<OutputNormActivations> {
  explicit OutputNormActivations(TensorPool& pool)
      : output(pool), state(pool), gradient(pool) {}

  auto parts() { return std::tie(output, state, gradient); }

  PooledTensor output;  // Of the sublayer.
  NormState state;
  PooledTensor gradient;  // Of `output`; BackwardInput leaves it.
};

// The tensors that a transformer block keeps for a micro-batch between its
// passes. There is one object per micro-batch in flight; the caller owns it.
//
//   TensorPool pool(group.memory(), &group.queue());  // one a rank
//   BlockActivations activations(pool);
//   block.Forward(1, x, y, activations);
//   activations.bytes();                      // as Recompute says
//   block.BackwardInput(dy, dx, activations);
//   block.BackwardWeight(activations);        // now empty and reusable
//
// The memory is taken from the pool and returned as soon as it is not needed.
class BlockActivations : private TensorParts<BlockActivations> {
 public:
  // `pool` must outlive this.
  explicit BlockActivations(TensorPool& pool)
      : input_(pool),
        attention_norm_(pool),
        attention_input_(pool),
        attention_(pool),
        middle_(pool),
        mlp_norm_(pool),
        mlp_input_(pool),
        mlp_(pool),
        moe_(pool),
        attention_output_(pool),
        mlp_output_(pool),
        output_gradient_(pool),
        mlp_input_gradient_(pool),
        middle_gradient_(pool),
        attention_input_gradient_(pool) {}

  // The next pass.
  enum class Stage { kForward, kBackwardInput, kBackwardWeight };
  Stage stage() const { return stage_; }

  // The bytes of the tensors held now.
  int64_t bytes() const { return input_.bytes() + TensorParts::bytes(); }

  // Must be set before the backward of a block with a mixture of experts
  // (MoeActivations::loss_scale).
  void set_loss_scale(double scale) { moe_.loss_scale = scale; }

  // All tensors that may be held between a forward and its backward, in a fixed
  // order. A caller that releases them must restore them before the backward,
  // with the same types and shapes.
  std::vector<KeptTensor> Kept() {
    return {{&input_, &input_view_},
            {&attention_norm_.inverse},
            {&attention_input_},
            {&attention_.qkv},
            {&attention_.query},
            {&attention_.key},
            {&attention_.value},
            {&attention_.output},
            {&attention_.log_sum_exp},
            {&attention_.query_norm.input},
            {&attention_.query_norm.state.inverse},
            {&attention_.key_norm.input},
            {&attention_.key_norm.state.inverse},
            {&attention_.latent.down},
            {&attention_.latent.query.value},
            {&attention_.latent.query.state.inverse},
            {&attention_.latent.kv.value},
            {&attention_.latent.kv.state.inverse},
            {&attention_output_.output},
            {&attention_output_.state.inverse},
            {&middle_},
            {&mlp_norm_.inverse},
            {&mlp_input_},
            {&mlp_.gate_up},
            {&mlp_.product},
            {&moe_.logits},
            {&moe_.input},
            {&moe_.gate_up},
            {&moe_.product},
            {&mlp_output_.output},
            {&mlp_output_.state.inverse}};
  }

  // Discards the micro-batch, for example after an error.
  void Clear() {
    ClearAllButInput();
    input_.Release();
    input_view_.reset();
    stage_ = Stage::kForward;
  }

 private:
  friend class TransformerBlock;
  friend class TensorParts<BlockActivations>;

  // All but the input.
  auto parts() {
    return std::tie(attention_norm_, attention_input_, attention_, middle_,
                    mlp_norm_, mlp_input_, mlp_, moe_, attention_output_,
                    mlp_output_, output_gradient_, mlp_input_gradient_,
                    middle_gradient_, attention_input_gradient_);
  }
  void ClearAllButInput() {
    TensorParts::Clear();
    output_gradient_view_.reset();
  }
  // For temporary tensors.
  TensorPool& pool() const { return input_.pool(); }

  Stage stage_ = Stage::kForward;
  TokenBatch batch_;
  std::optional<int64_t> first_sequence_;  // None: no dropout.
  PooledTensor input_;  // [tokens of the rank, width], like the next ones.
  // A view of the tensor above, or of a borrowed one.
  std::optional<ConstTensorView> input_view_;
  NormState attention_norm_;
  PooledTensor attention_input_;
  AttentionActivations attention_;
  PooledTensor middle_;  // After the first residual.
  NormState mlp_norm_;
  PooledTensor mlp_input_;
  GatedMlpActivations mlp_;
  MoeActivations moe_;
  OutputNormActivations attention_output_, mlp_output_;
  // Gradients that BackwardInput leaves for BackwardWeight.
  PooledTensor output_gradient_;
  // A view of the tensor above, or of a borrowed one.
  std::optional<ConstTensorView> output_gradient_view_;
  PooledTensor mlp_input_gradient_;
  PooledTensor middle_gradient_;
  PooledTensor attention_input_gradient_;
};

// Dropout of the outputs of attention and MLP, before they are added to the
// residual.
struct ResidualDropout {
  double probability = 0;  // In [0, 1).
  uint64_t seed = 0;
  int64_t layer = 0;  // Each layer has its own masks.
};

struct TransformerBlockOptions {
  // Its width, type, sequence parallelism, overlap and fp8 scales apply to the
  // whole block, which has four linear layers.
  AttentionOptions attention = {};
  int64_t hidden = 0;
  bool mlp_bias = false;
  GluKind glu = GluKind::kSwiGlu;  // Unused by a mixture of experts.
  LoraOptions mlp_lora = {};
  // If `moe.experts` is not 0, a mixture of experts replaces the MLP; its
  // width, type, adapters, sequence parallelism and overlap are those of the
  // block.
  MoeOptions moe = {};
  double norm_epsilon = 1e-5;
  // Norms of the inputs of attention and MLP, and of their outputs before they
  // are added to the residual.
  bool input_norms = true;
  bool output_norms = false;
  Recompute recompute = Recompute::kNone;
  ResidualDropout dropout = {};
  // The caller keeps x and dy unchanged until the micro-batch's last backward,
  // as pipeline::Executor does. The block then does not copy them; y must not
  // be x, and dx must not be dy.
  bool borrows_tensors = false;
};

// A block of a Llama-like model over a tensor group and a context group:
//
//   m = x + attention(norm(x)), y = m + mlp(norm(m))
//
// or with dropout
//
//   m = x + drop(attention(norm(x))), y = m + drop(mlp(norm(m)))
//
// Norms of the outputs, if there are any, precede the dropout; OLMo 2 has only
// these, Gemma 2 has both (TransformerBlockOptions).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto block, TransformerBlock::Create(
//           tensor_group, {context_group, layout},
//           {.attention = {.width = 512, .heads = 8, .kv_heads = 2,
//                          .head_size = 64},
//            .hidden = 1376,
//            .recompute = Recompute::kSelective}));
//   BlockActivations activations(pool);              // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(block.Forward(sequences, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(block.BackwardInput(dy, dx, activations));
//   TESSERA_RETURN_IF_ERROR(block.BackwardWeight(activations));
//   TESSERA_RETURN_IF_ERROR(block.FinishGradients());  // once a step
//
// Tokens are those of blocks/attention.h. x, y, dy and dx are [tokens, width]
// of one dtype, contiguous: all tokens of the rank's positions, the same on
// every rank of the tensor group, or under sequence parallelism those of
// BatchOf(sequences).tokens.RangeOf(rank). y may be x, and dx may be dy: the
// block copies the tensors that the backward needs to the activations, unless
// it borrows them (TransformerBlockOptions). Any number of other passes may be
// executed between BackwardInput and BackwardWeight (arXiv 2401.10241).
//
// Gradients of weights cover only the rank's positions: sum them over the
// context group as over data-parallel ranks. Weights of a block:
//
//   attention_norm.weight   input_layernorm of Hugging Face's Llama
//   attention.qkv.weight    self_attn.q_proj, k_proj, v_proj, by rows
//   attention.output.weight self_attn.o_proj
//                           (latent attention: blocks/latent_projection.h)
//   attention.sinks         self_attn.sinks of GPT-OSS
//   attention_output_norm.weight  post_attention_layernorm of OLMo 2, Gemma 2
//   mlp_norm.weight         post_attention_layernorm
//   mlp.gate_up.weight      mlp.gate_proj, up_proj, by rows
//   mlp.down.weight         mlp.down_proj
//   mlp_output_norm.weight  post_feedforward_layernorm of OLMo 2, Gemma 2
//
// With a mixture of experts (blocks/moe_mlp.h) its weights replace those of the
// MLP: mlp.router.weight, mlp.experts.gate_up.weight and so on.
//
// Dropout masks depend only on the seed, the layer and the position of a token
// in the data, so they are the same on every mesh and when a forward is
// recomputed. Calls are collectives of both groups, one at a time. After an
// error, clear the activations.
class TransformerBlock {
 public:
  // A collective of the groups. Errors as for its layers. `experts` are the
  // ranks that share a mixture of experts; without it each rank has all
  // experts.
  static absl::StatusOr<TransformerBlock> Create(
      const TensorGroup& group, const ContextGroup& context,
      const TransformerBlockOptions& options,
      const std::optional<TensorGroup>& experts = std::nullopt);

  Attention& attention() { return attention_; }
  // Null if the block has the other one.
  GatedMlp* mlp() { return mlp_ ? &*mlp_ : nullptr; }
  MoeMlp* moe() { return moe_ ? &*moe_ : nullptr; }
  const TransformerBlockOptions& options() const { return options_; }

  // The pointers are valid until the block is moved or destroyed.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const {
    return attention_.BatchOf(sequences);
  }

  // FailedPrecondition if the passes of the activations are out of order, or
  // required weights or gradients are released (BackwardWeight needs no values,
  // the other passes no gradients). InvalidArgument if a tensor is not as
  // described above. `first_sequence` is the number of the first sequence in
  // the data, which determines the dropout masks; nullopt disables dropout.
  // `first_keys` replaces the mask of the window for this micro-batch
  // (AttentionActivations); its memory must stay valid until the last backward.
  absl::Status Forward(
      int64_t sequences, ConstTensorView x, TensorView y,
      BlockActivations& activations,
      std::optional<int64_t> first_sequence = std::nullopt,
      const std::optional<ConstTensorView>& first_keys = std::nullopt);
  absl::Status BackwardInput(ConstTensorView y_gradient, TensorView x_gradient,
                             BlockActivations& activations);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(BlockActivations& activations);
  // Both passes; overlaps the computation of weight gradients with the
  // communication of input gradients, and gathers and holds less than the
  // separate passes.
  absl::Status Backward(ConstTensorView y_gradient, TensorView x_gradient,
                        BlockActivations& activations);

  // Call it after the last backward of a step.
  absl::Status FinishGradients();

 private:
  TransformerBlock(const TensorGroup& group, const ContextGroup& context,
                   const TransformerBlockOptions& options, Attention attention)
      : group_(group),
        length_(context.layout.length()),
        positions_(context.layout.PositionsOf(context.group.rank())),
        options_(options),
        attention_(std::move(attention)) {}

  absl::Status CreateNorms();
  absl::Status CreateMlp(const TensorGroup& context,
                         const std::optional<TensorGroup>& experts);

  absl::Status CheckTensor(std::string_view name, const ConstTensorView& x,
                           const TokenBatch& batch) const;
  absl::StatusOr<TensorView> Reserve(const TokenBatch& batch,
                                     PooledTensor& memory) const;
  // A sublayer whose output is dropped.
  enum class Sublayer { kAttention, kMlp };
  absl::Status Drop(Sublayer sublayer, const BlockActivations& activations,
                    TensorView x) const;
  absl::StatusOr<ConstTensorView> GradientOf(
      Sublayer sublayer, const BlockActivations& activations,
      ConstTensorView residual_gradient, PooledTensor& memory) const;
  // The norm of a sublayer's output and its activations.
  std::optional<RmsNorm>& OutputNormOf(Sublayer sublayer) {
    return sublayer == Sublayer::kAttention ? attention_output_norm_
                                            : mlp_output_norm_;
  }
  static OutputNormActivations& OutputOf(Sublayer sublayer,
                                         BlockActivations& activations) {
    return sublayer == Sublayer::kAttention ? activations.attention_output_
                                            : activations.mlp_output_;
  }
  // The tensor that a sublayer writes, if `y` is the one to be added.
  absl::StatusOr<TensorView> OutputFor(Sublayer sublayer, TensorView y,
                                       BlockActivations& activations);
  absl::Status FinishOutput(Sublayer sublayer, TensorView y,
                            BlockActivations& activations);
  absl::StatusOr<ConstTensorView> OutputGradient(
      Sublayer sublayer, bool input, bool weights,
      BlockActivations& activations, ConstTensorView residual_gradient,
      PooledTensor& memory);
  // The inputs of the sublayers.
  ConstTensorView AttentionInput(const BlockActivations& activations) const {
    return attention_norm_ ? activations.attention_input_.view()
                           : *activations.input_view_;
  }
  ConstTensorView MlpInput(const BlockActivations& activations) const {
    return mlp_norm_ ? activations.mlp_input_.view()
                     : activations.middle_.view();
  }
  absl::Status AddInputGradient(std::optional<RmsNorm>& norm, bool weights,
                                ConstTensorView gradient, ConstTensorView x,
                                const NormState& state,
                                ConstTensorView residual_gradient,
                                TensorView x_gradient) const;
  absl::Status RunMlp(TensorView output, BlockActivations& activations);
  absl::Status ForwardAttention(BlockActivations& activations);
  absl::Status NormaliseMiddle(BlockActivations& activations);
  absl::Status ForwardMlp(TensorView y, BlockActivations& activations);
  absl::Status ComputeAgain(BlockActivations& activations);
  absl::Status BackwardMlp(bool weights, ConstTensorView gradient,
                           BlockActivations& activations);
  absl::Status StartBackward(ConstTensorView y_gradient,
                             const TensorView& x_gradient,
                             BlockActivations& activations);
  absl::Status Propagate(bool weights, TensorView x_gradient,
                         BlockActivations& activations);

  TensorGroup group_;
  int64_t length_;                  // A sequence's, over all context ranks.
  std::vector<int64_t> positions_;  // This context rank's.
  TransformerBlockOptions options_;
  Attention attention_;
  // Null if the block does not have them.
  std::optional<RmsNorm> attention_norm_, attention_output_norm_;
  std::optional<RmsNorm> mlp_norm_, mlp_output_norm_;
  std::optional<GatedMlp> mlp_;
  std::optional<MoeMlp> moe_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_
