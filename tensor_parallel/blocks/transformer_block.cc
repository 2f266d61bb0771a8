#include "tensor_parallel/blocks/transformer_block.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/norm.h"

namespace tessera::tensor_parallel {
namespace {

using Stage = BlockActivations::Stage;

constexpr std::string_view PassOf(Stage stage) {
  switch (stage) {
    case Stage::kForward:
      return "Forward";
    case Stage::kBackwardInput:
      return "BackwardInput";
    case Stage::kBackwardWeight:
      return "BackwardWeight";
  }
  return "no pass";
}

absl::Status CheckStage(const BlockActivations& activations, Stage wanted) {
  if (activations.stage() == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("TransformerBlock::", PassOf(wanted),
                   " of activations that are ready "
                   "for ",
                   PassOf(activations.stage()),
                   "; call the passes in order, or clear the activations"));
}

absl::Status CheckDropout(const ResidualDropout& dropout) {
  if (dropout.probability >= 0 && dropout.probability < 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a transformer block with dropout of probability ",
                   dropout.probability, "; it must be in [0, 1)"));
}

}  // namespace

absl::StatusOr<TransformerBlock> TransformerBlock::Create(
    const TensorGroup& group, const ContextGroup& context,
    const TransformerBlockOptions& options,
    const std::optional<TensorGroup>& experts) {
  TESSERA_RETURN_IF_ERROR(CheckDropout(options.dropout));
  if (!options.input_norms && !options.output_norms) {
    return absl::InvalidArgumentError(
        "a transformer block without norms; set input_norms or output_norms");
  }
  TESSERA_ASSIGN_OR_RETURN(
      Attention attention,
      Attention::Create(group, context, options.attention));
  TransformerBlock block(group, context, options, std::move(attention));
  TESSERA_RETURN_IF_ERROR(block.CreateNorms());
  TESSERA_RETURN_IF_ERROR(block.CreateMlp(context.group, experts));
  std::vector<Parameter*> named;
  block.AppendParameters("", named);
  return block;
}

absl::Status TransformerBlock::CreateNorms() {
  const NormOptions options = {.width = options_.attention.width,
                               .epsilon = options_.norm_epsilon,
                               .dtype = options_.attention.dtype};
  const auto create = [&](bool wanted, std::optional<RmsNorm>& norm) {
    if (!wanted) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(RmsNorm made, RmsNorm::Create(group_, options));
    norm.emplace(std::move(made));
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(create(options_.input_norms, attention_norm_));
  TESSERA_RETURN_IF_ERROR(create(options_.input_norms, mlp_norm_));
  TESSERA_RETURN_IF_ERROR(
      create(options_.output_norms, attention_output_norm_));
  return create(options_.output_norms, mlp_output_norm_);
}

absl::Status TransformerBlock::CreateMlp(
    const TensorGroup& context, const std::optional<TensorGroup>& experts) {
  const AttentionOptions& common = options_.attention;
  if (options_.moe.experts == 0) {
    TESSERA_ASSIGN_OR_RETURN(
        GatedMlp mlp, GatedMlp::Create(group_, {.width = common.width,
                                                .hidden = options_.hidden,
                                                .bias = options_.mlp_bias,
                                                .kind = options_.glu,
                                                .dtype = common.dtype,
                                                .fp8 = common.fp8,
                                                .lora = options_.mlp_lora}));
    mlp_.emplace(std::move(mlp));
    return absl::OkStatus();
  }
  MoeOptions options = options_.moe;
  options.width = common.width;
  options.dtype = common.dtype;
  options.lora = options_.mlp_lora;
  TESSERA_ASSIGN_OR_RETURN(
      MoeMlp moe,
      MoeMlp::Create({.tensor = group_,
                      .experts = experts.value_or(TensorGroup(group_.ops())),
                      .context = context},
                     options));
  moe_.emplace(std::move(moe));
  return absl::OkStatus();
}

void TransformerBlock::AppendParameters(std::string_view prefix,
                                        std::vector<Parameter*>& parameters) {
  const auto name = [&](std::string_view part) {
    return ParameterName(prefix, part);
  };
  const auto append = [&](std::string_view part, auto& layer) {
    if (layer) layer->AppendParameters(name(part), parameters);
  };
  append("attention_norm", attention_norm_);
  attention_.AppendParameters(name("attention"), parameters);
  append("attention_output_norm", attention_output_norm_);
  append("mlp_norm", mlp_norm_);
  append("mlp", mlp_);
  append("mlp", moe_);
  append("mlp_output_norm", mlp_output_norm_);
}

absl::Status TransformerBlock::CheckTensor(std::string_view name,
                                           const ConstTensorView& x,
                                           const TokenBatch& batch) const {
  const AttentionOptions& common = options_.attention;
  const int64_t rows = group_.TokensBetweenLayers(batch.tokens).size();
  if (x.rank() == 2 && x.shape()[0] == rows && x.shape()[1] == common.width &&
      x.dtype() == common.dtype && x.IsContiguous()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", group_.rank(), " of a transformer block: ", name, " is ",
      DTypeName(x.dtype()), " of ", absl::StrJoin(x.shape(), " x "),
      x.IsContiguous() ? "" : " with gaps", "; it should be ",
      DTypeName(common.dtype), " of ", rows, " x ", common.width,
      " (tokens of the rank, width)"));
}

// A tensor as the block's input.
absl::StatusOr<TensorView> TransformerBlock::Reserve(
    const TokenBatch& batch, PooledTensor& memory) const {
  const AttentionOptions& common = options_.attention;
  return memory.Reserve(
      common.dtype,
      {{group_.TokensBetweenLayers(batch.tokens).size(), common.width}});
}

// Sets dropped elements of a sublayer's output, or of its gradient, to zero.
absl::Status TransformerBlock::Drop(Sublayer sublayer,
                                    const BlockActivations& a,
                                    TensorView x) const {
  const ResidualDropout& dropout = options_.dropout;
  if (dropout.probability == 0 || !a.first_sequence_) return absl::OkStatus();
  // Does not collide with the streams of weights, which are hashes of their
  // names.
  constexpr uint64_t kStreams = 0x64726f706f757400;  // "dropout"
  const uint64_t stream = kStreams + 2 * static_cast<uint64_t>(dropout.layer) +
                          static_cast<uint64_t>(sublayer);
  const IndexRange mine = group_.TokensBetweenLayers(a.batch_.tokens);
  const auto positions = static_cast<int64_t>(positions_.size());
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(mine.size()));
  for (int64_t token = mine.begin; token < mine.end; ++token) {
    const int64_t sequence = *a.first_sequence_ + token / positions;
    rows.push_back(sequence * length_ +
                   positions_[static_cast<size_t>(token % positions)]);
  }
  return group_.ops().Run(
      op::Dropout{{.key = {.seed = dropout.seed, .stream = stream},
                   .probability = dropout.probability,
                   .rows = rows},
                  x});
}

// The gradient of a sublayer's output, from the gradient of the sum to which it
// was added: the same tensor without dropout, otherwise a copy in `memory`.
absl::StatusOr<ConstTensorView> TransformerBlock::GradientOf(
    Sublayer sublayer, const BlockActivations& a,
    ConstTensorView residual_gradient, PooledTensor& memory) const {
  if (options_.dropout.probability == 0 || !a.first_sequence_) {
    return residual_gradient;
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                           Reserve(a.batch_, memory));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Run(op::Copy{residual_gradient, gradient}));
  TESSERA_RETURN_IF_ERROR(Drop(sublayer, a, gradient));
  return ConstTensorView(gradient);
}

absl::StatusOr<TensorView> TransformerBlock::OutputFor(Sublayer sublayer,
                                                       TensorView y,
                                                       BlockActivations& a) {
  if (!OutputNormOf(sublayer)) return y;
  return Reserve(a.batch_, OutputOf(sublayer, a).output);
}

// Sets y, or the tensor of OutputFor is y.
absl::Status TransformerBlock::FinishOutput(Sublayer sublayer, TensorView y,
                                            BlockActivations& a) {
  if (std::optional<RmsNorm>& norm = OutputNormOf(sublayer)) {
    OutputNormActivations& own = OutputOf(sublayer, a);
    TESSERA_RETURN_IF_ERROR(norm->Forward(own.output.view(), y, own.state));
  }
  return Drop(sublayer, a, y);
}

// The gradient of a sublayer's output before its norm, from the gradient of the
// sum to which it was added; and with `weights` the gradient of the norm's
// weight. Without `input` it was computed before.
absl::StatusOr<ConstTensorView> TransformerBlock::OutputGradient(
    Sublayer sublayer, bool input, bool weights, BlockActivations& a,
    ConstTensorView residual_gradient, PooledTensor& memory) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                           GradientOf(sublayer, a, residual_gradient, memory));
  std::optional<RmsNorm>& norm = OutputNormOf(sublayer);
  if (!norm) return gradient;
  OutputNormActivations& own = OutputOf(sublayer, a);
  if (weights) {
    TESSERA_RETURN_IF_ERROR(
        norm->BackwardWeight(gradient, own.output.view(), own.state));
  }
  if (input) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView output_gradient,
                             Reserve(a.batch_, own.gradient));
    TESSERA_RETURN_IF_ERROR(norm->BackwardInput(gradient, own.output.view(),
                                                own.state, output_gradient));
  }
  return ConstTensorView(own.gradient.view());
}

// x_gradient = the gradient of a sublayer's input x before its norm, from the
// gradient behind it, plus the residual's; and with `weights` the gradient of
// the norm's weight.
absl::Status TransformerBlock::AddInputGradient(
    std::optional<RmsNorm>& norm, bool weights, ConstTensorView gradient,
    ConstTensorView x, const NormState& state,
    ConstTensorView residual_gradient, TensorView x_gradient) const {
  if (!norm) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::Copy{residual_gradient, x_gradient}));
    return group_.ops().Run(op::Add{gradient, x_gradient});
  }
  return weights ? norm->AddBackward(gradient, x, state, residual_gradient,
                                     x_gradient)
                 : norm->AddBackwardInput(gradient, x, state, residual_gradient,
                                          x_gradient);
}

// middle = attention(norm(input)), or norm(attention(input)).
absl::Status TransformerBlock::ForwardAttention(BlockActivations& a) {
  if (attention_norm_) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView normalised,
                             Reserve(a.batch_, a.attention_input_));
    TESSERA_RETURN_IF_ERROR(attention_norm_->Forward(*a.input_view_, normalised,
                                                     a.attention_norm_));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView middle,
                           Reserve(a.batch_, a.middle_));
  TESSERA_ASSIGN_OR_RETURN(const TensorView output,
                           OutputFor(Sublayer::kAttention, middle, a));
  TESSERA_RETURN_IF_ERROR(
      attention_.Forward(a.batch_, AttentionInput(a), output, a.attention_));
  return FinishOutput(Sublayer::kAttention, middle, a);
}

// middle += input, and the norm of middle.
absl::Status TransformerBlock::NormaliseMiddle(BlockActivations& a) {
  if (!mlp_norm_) {
    return group_.ops().Run(op::Add{*a.input_view_, a.middle_.view()});
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView normalised,
                           Reserve(a.batch_, a.mlp_input_));
  return mlp_norm_->AddForward(*a.input_view_, a.middle_.view(), normalised,
                               a.mlp_norm_);
}

absl::Status TransformerBlock::RunMlp(TensorView output, BlockActivations& a) {
  const ConstTensorView input = MlpInput(a);
  if (mlp_) return mlp_->Forward(a.batch_.tokens, input, output, a.mlp_);
  a.moe_.loss_tokens = a.batch_.sequences * length_;
  return moe_->Forward(a.batch_.tokens, a.batch_.sequences, input, output,
                       a.moe_);
}

absl::Status TransformerBlock::ForwardMlp(TensorView y, BlockActivations& a) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView output,
                           OutputFor(Sublayer::kMlp, y, a));
  TESSERA_RETURN_IF_ERROR(RunMlp(output, a));
  // Count the loads only in training.
  if (moe_ && a.first_sequence_) {
    TESSERA_RETURN_IF_ERROR(moe_->AddLoads(a.moe_));
  }
  return FinishOutput(Sublayer::kMlp, y, a);
}

absl::Status TransformerBlock::Forward(
    int64_t sequences, ConstTensorView x, TensorView y, BlockActivations& a,
    std::optional<int64_t> first_sequence,
    const std::optional<ConstTensorView>& first_keys) {
  TESSERA_RETURN_IF_ERROR(CheckStage(a, Stage::kForward));
  TESSERA_ASSIGN_OR_RETURN(a.batch_, BatchOf(sequences));
  TESSERA_RETURN_IF_ERROR(CheckTensor("x", x, a.batch_));
  TESSERA_RETURN_IF_ERROR(CheckTensor("y", y, a.batch_));
  a.first_sequence_ = first_sequence;
  a.attention_.first_keys = first_keys;
  a.input_view_ = x;
  if (!options_.borrows_tensors) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView input,
                             Reserve(a.batch_, a.input_));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{x, input}));
    a.input_view_ = input;
  }
  TESSERA_RETURN_IF_ERROR(ForwardAttention(a));
  if (options_.recompute == Recompute::kSelective) a.attention_.ClearCore();
  if (options_.recompute == Recompute::kFull) {
    a.attention_.Clear();
    a.attention_input_.Release();
  }
  TESSERA_RETURN_IF_ERROR(NormaliseMiddle(a));
  TESSERA_RETURN_IF_ERROR(ForwardMlp(y, a));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Add{a.middle_.view(), y}));
  if (options_.recompute == Recompute::kFull) a.ClearAllButInput();
  a.stage_ = Stage::kBackwardInput;
  return absl::OkStatus();
}

// Recomputes everything except the block's output, if only the input was kept.
absl::Status TransformerBlock::ComputeAgain(BlockActivations& a) {
  if (a.middle_.held()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ForwardAttention(a));
  TESSERA_RETURN_IF_ERROR(NormaliseMiddle(a));
  const ConstTensorView input = MlpInput(a);
  if (mlp_output_norm_) {
    PooledTensor memory(a.pool());
    TESSERA_ASSIGN_OR_RETURN(const TensorView y, Reserve(a.batch_, memory));
    TESSERA_ASSIGN_OR_RETURN(const TensorView output,
                             OutputFor(Sublayer::kMlp, y, a));
    TESSERA_RETURN_IF_ERROR(RunMlp(output, a));
    return mlp_output_norm_->Forward(output, y, a.mlp_output_.state);
  }
  return mlp_ ? mlp_->ForwardActivations(a.batch_.tokens, input, a.mlp_)
              : moe_->ForwardActivations(a.batch_.tokens, a.batch_.sequences,
                                         input, a.moe_);
}

// Computes the gradient of the MLP's input, and with `weights` the gradients of
// its weights.
absl::Status TransformerBlock::BackwardMlp(bool weights,
                                           ConstTensorView gradient,
                                           BlockActivations& a) {
  const Partition& tokens = a.batch_.tokens;
  const ConstTensorView input = MlpInput(a);
  const TensorView input_gradient = a.mlp_input_gradient_.view();
  if (mlp_) {
    return weights
               ? mlp_->Backward(tokens, gradient, input, input_gradient, a.mlp_)
               : mlp_->BackwardInput(tokens, gradient, input_gradient, a.mlp_);
  }
  return weights
             ? moe_->Backward(tokens, gradient, input, input_gradient, a.moe_)
             : moe_->BackwardInput(tokens, gradient, input_gradient, a.moe_);
}

// The common start of Backward and BackwardInput.
absl::Status TransformerBlock::StartBackward(ConstTensorView y_gradient,
                                             const TensorView& x_gradient,
                                             BlockActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckStage(a, Stage::kBackwardInput));
  TESSERA_RETURN_IF_ERROR(
      CheckTensor("the gradient of y", y_gradient, a.batch_));
  TESSERA_RETURN_IF_ERROR(
      CheckTensor("the gradient of x", x_gradient, a.batch_));
  TESSERA_RETURN_IF_ERROR(ComputeAgain(a));
  a.output_gradient_view_ = y_gradient;
  if (!options_.borrows_tensors) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                             Reserve(a.batch_, a.output_gradient_));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{y_gradient, gradient}));
    a.output_gradient_view_ = gradient;
  }
  for (PooledTensor* tensor : {&a.mlp_input_gradient_, &a.middle_gradient_,
                               &a.attention_input_gradient_}) {
    TESSERA_RETURN_IF_ERROR(Reserve(a.batch_, *tensor).status());
  }
  return absl::OkStatus();
}

// Computes the gradient of x, and with `weights` the gradients of the weights,
// each as soon as its inputs are available.
absl::Status TransformerBlock::Propagate(bool weights, TensorView x_gradient,
                                         BlockActivations& a) {
  const TensorView mlp_input = a.mlp_input_gradient_.view();
  const TensorView middle = a.middle_gradient_.view();
  const TensorView attention_input = a.attention_input_gradient_.view();
  PooledTensor dropped(a.pool());
  TESSERA_ASSIGN_OR_RETURN(
      ConstTensorView gradient,
      OutputGradient(Sublayer::kMlp, /*input=*/true, weights, a,
                     *a.output_gradient_view_, dropped));
  TESSERA_RETURN_IF_ERROR(BackwardMlp(weights, gradient, a));
  TESSERA_RETURN_IF_ERROR(AddInputGradient(mlp_norm_, weights, mlp_input,
                                           a.middle_.view(), a.mlp_norm_,
                                           *a.output_gradient_view_, middle));
  TESSERA_ASSIGN_OR_RETURN(
      gradient, OutputGradient(Sublayer::kAttention, /*input=*/true, weights, a,
                               middle, dropped));
  TESSERA_RETURN_IF_ERROR(
      weights ? attention_.Backward(a.batch_, gradient, AttentionInput(a),
                                    attention_input, a.attention_)
              : attention_.BackwardInput(a.batch_, gradient, attention_input,
                                         a.attention_));
  return AddInputGradient(attention_norm_, weights, attention_input,
                          *a.input_view_, a.attention_norm_, middle,
                          x_gradient);
}

absl::Status TransformerBlock::BackwardInput(ConstTensorView y_gradient,
                                             TensorView x_gradient,
                                             BlockActivations& a) {
  TESSERA_RETURN_IF_ERROR(StartBackward(y_gradient, x_gradient, a));
  TESSERA_RETURN_IF_ERROR(Propagate(/*weights=*/false, x_gradient, a));
  a.stage_ = Stage::kBackwardWeight;
  return absl::OkStatus();
}

absl::Status TransformerBlock::BackwardWeight(BlockActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckStage(a, Stage::kBackwardWeight));
  PooledTensor dropped(a.pool());
  TESSERA_ASSIGN_OR_RETURN(
      ConstTensorView gradient,
      OutputGradient(Sublayer::kMlp, /*input=*/false, /*weights=*/true, a,
                     *a.output_gradient_view_, dropped));
  TESSERA_RETURN_IF_ERROR(mlp_ ? mlp_->BackwardWeight(a.batch_.tokens, gradient,
                                                      MlpInput(a), a.mlp_)
                               : moe_->BackwardWeight(a.batch_.tokens, gradient,
                                                      MlpInput(a), a.moe_));
  if (mlp_norm_) {
    TESSERA_RETURN_IF_ERROR(mlp_norm_->BackwardWeight(
        a.mlp_input_gradient_.view(), a.middle_.view(), a.mlp_norm_));
  }
  TESSERA_ASSIGN_OR_RETURN(
      gradient,
      OutputGradient(Sublayer::kAttention, /*input=*/false, /*weights=*/true, a,
                     a.middle_gradient_.view(), dropped));
  TESSERA_RETURN_IF_ERROR(attention_.BackwardWeight(
      a.batch_, gradient, AttentionInput(a), a.attention_));
  if (attention_norm_) {
    TESSERA_RETURN_IF_ERROR(attention_norm_->BackwardWeight(
        a.attention_input_gradient_.view(), *a.input_view_, a.attention_norm_));
  }
  a.Clear();
  return absl::OkStatus();
}

absl::Status TransformerBlock::Backward(ConstTensorView y_gradient,
                                        TensorView x_gradient,
                                        BlockActivations& a) {
  TESSERA_RETURN_IF_ERROR(StartBackward(y_gradient, x_gradient, a));
  TESSERA_RETURN_IF_ERROR(Propagate(/*weights=*/true, x_gradient, a));
  a.Clear();
  return absl::OkStatus();
}

absl::Status TransformerBlock::FinishGradients() {
  for (std::optional<RmsNorm>* const norm :
       {&attention_norm_, &attention_output_norm_, &mlp_norm_,
        &mlp_output_norm_}) {
    if (*norm) TESSERA_RETURN_IF_ERROR((*norm)->FinishGradients());
  }
  TESSERA_RETURN_IF_ERROR(attention_.FinishGradients());
  return mlp_ ? mlp_->FinishGradients() : moe_->FinishGradients();
}

}  // namespace tessera::tensor_parallel
