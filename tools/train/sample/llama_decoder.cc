#include "tools/train/sample/llama_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "tensor_parallel/blocks/latent_projection.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/llama_names.h"
#include "tools/train/model/mixture_options.h"

namespace tessera::train {

namespace {

using model_files::LlamaPart;

absl::StatusOr<Tensor> ReadPart(WeightReader& reader, DType dtype,
                                LlamaPart part, int64_t layer = -1) {
  const model_files::LlamaParameter parameter =
      model_files::MakeLlamaParameter(reader.config(), part, layer);
  const int64_t rows = parameter.shape[0];
  TESSERA_ASSIGN_OR_RETURN(Tensor tensor,
                           Tensor::Create(dtype, parameter.shape));
  if (dtype == DType::kF32) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<float> values,
                             tensor.view().AsSpan<float>());
    TESSERA_RETURN_IF_ERROR(reader.Read(part, layer, 0, rows, values),
                            Annotate(_, parameter.name));
    return tensor;
  }
  std::vector<float> values(static_cast<size_t>(tensor.element_count()));
  TESSERA_RETURN_IF_ERROR(reader.Read(part, layer, 0, rows, values),
                          Annotate(_, parameter.name));
  TESSERA_RETURN_IF_ERROR(
      Convert(DType::kF32, std::as_bytes(std::span(values)), dtype,
              {tensor.view().data(),
               static_cast<size_t>(tensor.view().size_in_bytes())}));
  return tensor;
}

absl::StatusOr<LlamaLayerWeights> ReadLayer(WeightReader& reader, DType dtype,
                                            int64_t layer) {
  absl::Status status;
  // Reads a part if the model has it and there was no error.
  const auto read = [&](LlamaPart part, bool has = true) {
    std::optional<Tensor> tensor;
    if (!has || !status.ok()) return tensor;
    absl::StatusOr<Tensor> found = ReadPart(reader, dtype, part, layer);
    status = found.status();
    if (found.ok()) tensor = *std::move(found);
    return tensor;
  };
  const model_files::ModelConfig& config = reader.config();
  const bool mixture = config.IsMixture(layer);
  const bool shared = mixture && config.mixture.shared_intermediate > 0;
  const bool biases = mixture && config.mixture.biases;
  std::optional<Tensor> output = read(LlamaPart::kAttentionOutput);
  std::optional<Tensor> gate_up =
      read(mixture ? LlamaPart::kExpertsGateUp : LlamaPart::kGateUp);
  std::optional<Tensor> down =
      read(mixture ? LlamaPart::kExpertsDown : LlamaPart::kDown);
  TESSERA_RETURN_IF_ERROR(status);
  LlamaLayerWeights weights = {
      .attention_norm = read(LlamaPart::kAttentionNorm, config.input_norms),
      .qkv = read(LlamaPart::kQkv, !config.IsLatent()),
      .latent_down = read(LlamaPart::kLatentDown, config.IsLatent()),
      .query_up = read(LlamaPart::kQueryUp, config.IsLatent()),
      .kv_up = read(LlamaPart::kKvUp, config.IsLatent()),
      .qkv_bias = read(LlamaPart::kQkvBias, config.qkv_bias),
      .attention_output = *std::move(output),
      .output_bias = read(LlamaPart::kAttentionOutputBias, config.output_bias),
      .query_norm = read(LlamaPart::kQueryNorm,
                         config.qk_norm || config.latent.query_rank > 0),
      .key_norm =
          read(LlamaPart::kKeyNorm, config.qk_norm || config.IsLatent()),
      .sinks = read(LlamaPart::kSinks, config.sinks),
      .mlp_norm = read(LlamaPart::kMlpNorm, config.input_norms),
      .attention_output_norm =
          read(LlamaPart::kAttentionOutputNorm, config.output_norms),
      .mlp_output_norm = read(LlamaPart::kMlpOutputNorm, config.output_norms),
      .gate_up = *std::move(gate_up),
      .down = *std::move(down),
      .router = read(LlamaPart::kRouter, mixture),
      .router_bias =
          read(LlamaPart::kRouterBias, mixture && config.mixture.sigmoid),
      .router_logit_bias = read(LlamaPart::kRouterLogitBias, biases),
      .gate_up_bias = read(LlamaPart::kExpertsGateUpBias, biases),
      .down_bias = read(LlamaPart::kExpertsDownBias, biases),
      .shared_gate_up = read(LlamaPart::kSharedGateUp, shared),
      .shared_down = read(LlamaPart::kSharedDown, shared)};
  TESSERA_RETURN_IF_ERROR(status);
  return weights;
}

// Tokens per batch.
constexpr int64_t kMostAtOnce = 128;
// Rows of logits per batch, fewer because they are as wide as the vocabulary.
constexpr int64_t kRowsScoredAtOnce = 16;

// [rows, ...] viewed as [1, rows, ...].
template <typename View>
absl::StatusOr<View> OneSequence(const View& x) {
  std::vector<int64_t> shape = {1};
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  return x.Reshape(shape);
}

// A matrix of heads viewed as [rows, heads, head size].
absl::StatusOr<TensorView> HeadsOf(const TensorView& x, int64_t heads) {
  return x.Reshape({{x.shape()[0], heads, x.shape()[1] / heads}});
}

// log softmax(logits)[target].
template <typename T>
double LogProbability(std::span<const T> logits, int64_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const T logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  return logits[static_cast<size_t>(target)] - largest - std::log(sum);
}

// Appends the log-probability of each target, by the row of `logits`.
template <typename T>
absl::Status AddScores(ConstTensorView logits, std::span<const int64_t> targets,
                       std::vector<double>& scores) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<const T> values, logits.AsSpan<T>());
  const auto width = static_cast<size_t>(logits.shape()[1]);
  for (size_t i = 0; i < targets.size(); ++i) {
    scores.push_back(
        LogProbability(values.subspan(i * width, width), targets[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaWeights> LlamaWeights::Read(WeightReader& reader,
                                                DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kF64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of ", DTypeName(dtype), " for text; f32 and f64 are allowed"));
  }
  const model_files::ModelConfig config = reader.config();
  TESSERA_RETURN_IF_ERROR(config.Validate());
  TESSERA_ASSIGN_OR_RETURN(Tensor embedding,
                           ReadPart(reader, dtype, LlamaPart::kEmbedding));
  std::vector<LlamaLayerWeights> layers;
  for (int64_t i = 0; i < config.layers; ++i) {
    TESSERA_ASSIGN_OR_RETURN(LlamaLayerWeights layer,
                             ReadLayer(reader, dtype, i));
    layers.push_back(std::move(layer));
  }
  TESSERA_ASSIGN_OR_RETURN(Tensor norm,
                           ReadPart(reader, dtype, LlamaPart::kFinalNorm));
  std::optional<Tensor> head;
  if (!config.tied_embeddings) {
    TESSERA_ASSIGN_OR_RETURN(head, ReadPart(reader, dtype, LlamaPart::kHead));
  }
  return LlamaWeights(config, std::move(embedding), std::move(layers),
                      std::move(norm), std::move(head));
}

absl::StatusOr<std::unique_ptr<LlamaDecoder>> LlamaDecoder::Create(
    LlamaWeights& weights, tensor_parallel::Ops& ops, int64_t capacity) {
  if (capacity < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "capacity of ", capacity, " tokens; 1 and more are allowed"));
  }
  std::unique_ptr<LlamaDecoder> decoder(
      new LlamaDecoder(weights, ops, capacity));
  TESSERA_RETURN_IF_ERROR(decoder->Allocate());
  TESSERA_RETURN_IF_ERROR(decoder->CreateMixtures());
  return decoder;
}

// Creates mixtures bound to the weights, in the order of
// MoeMlp::AppendParameters.
absl::Status LlamaDecoder::CreateMixtures() {
  mixtures_.resize(weights_.layers().size());
  for (size_t i = 0; i < mixtures_.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if (!config_.IsMixture(number)) continue;
    tensor_parallel::MoeOptions options = MixtureOptions(config_, number);
    options.dtype = weights_.embedding().dtype();
    TESSERA_ASSIGN_OR_RETURN(
        tensor_parallel::MoeMlp mixture,
        tensor_parallel::MoeMlp::Create({group_, group_, group_}, options));
    mixtures_[i].emplace(std::move(mixture));
    LlamaLayerWeights& layer = weights_.layers()[i];
    std::vector<Tensor*> weights = {&*layer.router};
    const auto add = [&](std::optional<Tensor>& weight) {
      if (weight) weights.push_back(&*weight);
    };
    add(layer.router_bias);
    add(layer.router_logit_bias);
    weights.push_back(&layer.gate_up);
    add(layer.gate_up_bias);
    weights.push_back(&layer.down);
    add(layer.down_bias);
    add(layer.shared_gate_up);
    add(layer.shared_down);
    std::vector<tensor_parallel::Parameter*> parameters;
    mixtures_[i]->AppendParameters("mlp", parameters);
    for (size_t p = 0; p < parameters.size(); ++p) {
      TESSERA_RETURN_IF_ERROR(parameters[p]->Bind(weights[p]->view()));
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::Allocate() {
  const DType dtype = weights_.embedding().dtype();
  const auto matrix = [&](int64_t rows, int64_t columns) {
    return Tensor::Create(dtype, {{rows, columns}});
  };
  const int64_t latent = config_.latent.rope + config_.latent.kv_rank;
  for (int64_t i = 0; i < config_.layers; ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        Tensor keys,
        matrix(capacity_, config_.IsLatent() ? latent : config_.KvRows()));
    Cache& cache = caches_.emplace_back(Cache{std::move(keys), std::nullopt});
    if (config_.IsLatent()) continue;
    TESSERA_ASSIGN_OR_RETURN(cache.values, matrix(capacity_, config_.KvRows()));
  }
  const int64_t rows = std::min(capacity_, kMostAtOnce);
  TESSERA_ASSIGN_OR_RETURN(Tensor hidden, matrix(rows, config_.hidden));
  TESSERA_ASSIGN_OR_RETURN(Tensor normed, matrix(rows, config_.hidden));
  TESSERA_ASSIGN_OR_RETURN(Tensor inverse,
                           Tensor::Create(dtype, {{rows * config_.heads}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor query, matrix(rows, config_.QueryRows()));
  TESSERA_ASSIGN_OR_RETURN(Tensor attended,
                           matrix(rows, config_.OutputColumns()));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor down, matrix(rows, config_.IsLatent() ? config_.LatentRows() : 0));
  TESSERA_ASSIGN_OR_RETURN(Tensor absorbed,
                           matrix(rows, config_.heads * latent));
  TESSERA_ASSIGN_OR_RETURN(Tensor latents,
                           matrix(rows, config_.heads * latent));
  TESSERA_ASSIGN_OR_RETURN(Tensor log_sums, matrix(rows, config_.heads));
  TESSERA_ASSIGN_OR_RETURN(Tensor factors, matrix(rows, config_.heads));
  TESSERA_ASSIGN_OR_RETURN(Tensor gate, matrix(rows, config_.intermediate));
  TESSERA_ASSIGN_OR_RETURN(Tensor up, matrix(rows, config_.intermediate));
  TESSERA_ASSIGN_OR_RETURN(Tensor activation,
                           matrix(rows, config_.intermediate));
  TESSERA_ASSIGN_OR_RETURN(Tensor mixed, matrix(rows, config_.hidden));
  TESSERA_ASSIGN_OR_RETURN(Tensor logits, matrix(1, config_.vocabulary));
  scratch_ =
      Scratch{std::move(hidden),     std::move(normed),   std::move(inverse),
              std::move(query),      std::move(attended), std::move(down),
              std::move(absorbed),   std::move(latents),  std::move(log_sums),
              std::move(factors),    std::move(gate),     std::move(up),
              std::move(activation), std::move(mixed),    std::move(logits)};
  return absl::OkStatus();
}

absl::Status LlamaDecoder::CheckTokens(std::span<const int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count == 0) {
    return absl::InvalidArgumentError("no tokens to append; give at least 1");
  }
  if (count > capacity_ - length()) {
    return absl::OutOfRangeError(absl::StrCat(count, " tokens after ", length(),
                                              "; there is room for ", capacity_,
                                              " in all"));
  }
  return CheckVocabulary(tokens);
}

absl::Status LlamaDecoder::CheckVocabulary(
    std::span<const int64_t> tokens) const {
  for (const int64_t token : tokens) {
    if (0 <= token && token < config_.vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, "; the model's vocabulary has 0 to ",
                     config_.vocabulary - 1));
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::RunBatches(
    std::span<const int64_t> tokens,
    absl::FunctionRef<absl::Status(size_t, size_t)> after) {
  const size_t before = positions_.size();
  const auto end = static_cast<int64_t>(before + tokens.size());
  rotation_ = config_.rotary.Of(config_.RotarySize(), end);
  if (config_.local_rotary.has_value()) {
    local_rotation_ = config_.local_rotary->Of(config_.head_size, end);
  }
  for (size_t first = 0; first < tokens.size();) {
    const size_t count =
        std::min(tokens.size() - first, static_cast<size_t>(kMostAtOnce));
    absl::Status status = RunBatch(tokens.subspan(first, count));
    if (status.ok()) status = after(first, count);
    if (!status.ok()) {
      positions_.resize(before);
      return status;
    }
    first += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> LlamaDecoder::Append(
    std::span<const int64_t> tokens) {
  TESSERA_RETURN_IF_ERROR(CheckTokens(tokens));
  size_t rows = 0;
  TESSERA_RETURN_IF_ERROR(RunBatches(tokens, [&](size_t, size_t count) {
    rows = count;
    return absl::OkStatus();
  }));
  return LogitsOf(static_cast<int64_t>(rows) - 1);
}

absl::StatusOr<std::vector<double>> LlamaDecoder::Score(
    std::span<const int64_t> tokens, std::span<const int64_t> targets) {
  if (tokens.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(targets.size(), " targets for ", tokens.size(),
                     " tokens; give one for each"));
  }
  TESSERA_RETURN_IF_ERROR(CheckTokens(tokens));
  TESSERA_RETURN_IF_ERROR(CheckVocabulary(targets));
  const DType dtype = weights_.embedding().dtype();
  TESSERA_ASSIGN_OR_RETURN(
      Tensor all,
      Tensor::Create(dtype,
                     {{std::min<int64_t>(kRowsScoredAtOnce,
                                         static_cast<int64_t>(tokens.size())),
                       config_.vocabulary}}));
  std::vector<double> scores;
  TESSERA_RETURN_IF_ERROR(
      RunBatches(tokens, [&](size_t first, size_t count) -> absl::Status {
        for (size_t row = 0; row < count;) {
          const size_t rows =
              std::min(count - row, static_cast<size_t>(kRowsScoredAtOnce));
          TESSERA_ASSIGN_OR_RETURN(
              const TensorView logits,
              all.view().Narrow(0, 0, static_cast<int64_t>(rows)));
          TESSERA_RETURN_IF_ERROR(
              ComputeLogits(static_cast<int64_t>(row), logits));
          const auto some = targets.subspan(first + row, rows);
          TESSERA_RETURN_IF_ERROR(dtype == DType::kF64
                                      ? AddScores<double>(logits, some, scores)
                                      : AddScores<float>(logits, some, scores));
          row += rows;
        }
        return absl::OkStatus();
      }));
  return scores;
}

absl::Status LlamaDecoder::RunBatch(std::span<const int64_t> tokens) {
  const int64_t first = length();
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < count; ++i) positions_.push_back(first + i);
  TESSERA_ASSIGN_OR_RETURN(const TensorView hidden,
                           scratch_->hidden.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView ids,
                           ConstTensorView::Of(tokens, {{count}}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::GatherRows{
      weights_.embedding(), {0, config_.vocabulary}, ids, hidden}));
  if (config_.scaled_embedding) {
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Scale{
        config_.EmbeddingScale(hidden.dtype()), hidden}));
  }
  for (size_t i = 0; i < caches_.size(); ++i) {
    const LlamaLayerWeights& layer = weights_.layers()[i];
    TESSERA_RETURN_IF_ERROR(RunAttention(i, first, count));
    TESSERA_RETURN_IF_ERROR(
        Normalise(layer.mlp_norm ? &*layer.mlp_norm : nullptr, 0, count));
    TESSERA_RETURN_IF_ERROR(mixtures_[i]
                                ? RunMixture(layer, *mixtures_[i], count)
                                : RunMlp(layer, count));
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::Normalise(const Tensor* weight, int64_t begin,
                                     int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView x,
                           scratch_->hidden.view().Narrow(0, begin, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView y,
                           scratch_->normed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse,
                           scratch_->inverse.view().Narrow(0, 0, count));
  if (weight == nullptr) return ops_.Run(tensor_parallel::op::Copy{x, y});
  return ops_.Run(tensor_parallel::op::RmsNorm{config_.norm_epsilon, x,
                                               weight->view(), y, inverse});
}

absl::Status LlamaDecoder::AddOutput(ConstTensorView x, const Tensor& weight,
                                     const std::optional<Tensor>& bias,
                                     const std::optional<Tensor>& norm,
                                     int64_t count) {
  Tensor& target = norm.has_value() ? scratch_->mixed : scratch_->hidden;
  TESSERA_ASSIGN_OR_RETURN(const TensorView y,
                           target.view().Narrow(0, 0, count));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Gemm{
      {.transpose_b = true, .beta = norm.has_value() ? 0.0 : 1.0},
      x,
      weight.view(),
      y}));
  if (bias.has_value()) {
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(tensor_parallel::op::AddBias{bias->view(), y}));
  }
  return norm.has_value() ? AddMixed(norm, count) : absl::OkStatus();
}

absl::Status LlamaDecoder::AddMixed(const std::optional<Tensor>& norm,
                                    int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView mixed,
                           scratch_->mixed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView hidden,
                           scratch_->hidden.view().Narrow(0, 0, count));
  if (norm.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView inverse,
                             scratch_->inverse.view().Narrow(0, 0, count));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::RmsNorm{
        config_.norm_epsilon, mixed, norm->view(), mixed, inverse}));
  }
  return ops_.Run(tensor_parallel::op::Add{mixed, hidden});
}

absl::Status LlamaDecoder::Project(ConstTensorView weight, int64_t begin,
                                   int64_t end, int64_t count, TensorView y) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView rows,
                           weight.Narrow(0, begin, end - begin));
  TESSERA_ASSIGN_OR_RETURN(const TensorView x,
                           scratch_->normed.view().Narrow(0, 0, count));
  return ops_.Run(tensor_parallel::op::Gemm{{.transpose_b = true}, x, rows, y});
}

absl::Status LlamaDecoder::Rotate(size_t number, int64_t count,
                                  TensorView heads) {
  const tensor_parallel::RotaryFrequencies* const rotary =
      config_.RotaryOf(static_cast<int64_t>(number));
  if (rotary == nullptr) return absl::OkStatus();
  const std::span<const int64_t> seen = positions_;
  TESSERA_ASSIGN_OR_RETURN(
      const ConstTensorView now,
      ConstTensorView::Of(seen.last(static_cast<size_t>(count)), {{count}}));
  return ops_.Run(tensor_parallel::op::Rotate{
      rotary == &config_.rotary ? rotation_ : local_rotation_,
      /*inverse=*/false, now, heads});
}

absl::Status LlamaDecoder::RunAttention(size_t number, int64_t first,
                                        int64_t count) {
  const LlamaLayerWeights& layer = weights_.layers()[number];
  Cache& cache = caches_[number];
  if (config_.IsLatent()) return RunLatentAttention(number, first, count);
  const int64_t q = config_.QueryRows(), kv = config_.KvRows();
  TESSERA_RETURN_IF_ERROR(Normalise(
      layer.attention_norm ? &*layer.attention_norm : nullptr, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           scratch_->query.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_keys,
                           cache.keys.view().Narrow(0, first, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_values,
                           cache.values->view().Narrow(0, first, count));
  const auto project = [&](int64_t begin, int64_t end,
                           const TensorView& y) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Project(layer.qkv->view(), begin, end, count, y));
    if (!layer.qkv_bias.has_value()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(
        const ConstTensorView bias,
        layer.qkv_bias->view().Narrow(0, begin, end - begin));
    return ops_.Run(tensor_parallel::op::AddBias{bias, y});
  };
  TESSERA_RETURN_IF_ERROR(project(0, q, query));
  TESSERA_RETURN_IF_ERROR(project(q, q + kv, new_keys));
  TESSERA_RETURN_IF_ERROR(project(q + kv, q + 2 * kv, new_values));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query_heads,
                           HeadsOf(query, config_.heads));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key_heads,
                           HeadsOf(new_keys, config_.kv_heads));
  TESSERA_RETURN_IF_ERROR(NormaliseHeads(layer.query_norm, query_heads));
  TESSERA_RETURN_IF_ERROR(NormaliseHeads(layer.key_norm, key_heads));
  TESSERA_RETURN_IF_ERROR(Rotate(number, count, query_heads));
  TESSERA_RETURN_IF_ERROR(Rotate(number, count, key_heads));
  TESSERA_RETURN_IF_ERROR(Attend(cache,
                                 config_.WindowOf(static_cast<int64_t>(number)),
                                 layer.sinks, query_heads, scratch_->attended));
  TESSERA_ASSIGN_OR_RETURN(const TensorView attended,
                           scratch_->attended.view().Narrow(0, 0, count));
  return AddOutput(attended, layer.attention_output, layer.output_bias,
                   layer.attention_output_norm, count);
}

absl::Status LlamaDecoder::RunLatentAttention(size_t number, int64_t first,
                                              int64_t count) {
  const LlamaLayerWeights& layer = weights_.layers()[number];
  Cache& cache = caches_[number];
  TESSERA_RETURN_IF_ERROR(Normalise(
      layer.attention_norm ? &*layer.attention_norm : nullptr, 0, count));
  TESSERA_RETURN_IF_ERROR(SetLatents(layer, cache, first, count));
  TESSERA_RETURN_IF_ERROR(AbsorbQueries(layer, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_keys,
                           cache.keys.view().Narrow(0, first, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, HeadsOf(new_keys, 1));
  TESSERA_ASSIGN_OR_RETURN(const TensorView absorbed,
                           scratch_->absorbed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           HeadsOf(absorbed, config_.heads));
  TESSERA_RETURN_IF_ERROR(Rotate(number, count, key));
  TESSERA_RETURN_IF_ERROR(Rotate(number, count, query));
  TESSERA_RETURN_IF_ERROR(Attend(cache, /*window=*/0, /*sinks=*/std::nullopt,
                                 query, scratch_->latents));
  TESSERA_RETURN_IF_ERROR(ProjectValues(layer, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView attended,
                           scratch_->attended.view().Narrow(0, 0, count));
  return AddOutput(attended, layer.attention_output, layer.output_bias,
                   layer.attention_output_norm, count);
}

absl::Status LlamaDecoder::SetLatents(const LlamaLayerWeights& layer,
                                      Cache& cache, int64_t first,
                                      int64_t count) {
  const model_files::LatentConfig& latent = config_.latent;
  TESSERA_ASSIGN_OR_RETURN(const TensorView down,
                           scratch_->down.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           scratch_->query.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView rows,
                           cache.keys.view().Narrow(0, first, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse,
                           scratch_->inverse.view().Narrow(0, 0, count));
  TESSERA_RETURN_IF_ERROR(
      Project(layer.latent_down->view(), 0, config_.LatentRows(), count, down));
  if (latent.query_rank > 0) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                             down.Narrow(1, 0, latent.query_rank));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::RmsNorm{
        tensor_parallel::LatentOptions().norm_epsilon, own,
        layer.query_norm->view(), own, inverse}));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Gemm{
        {.transpose_b = true}, own, layer.query_up->view(), query}));
  } else {
    TESSERA_RETURN_IF_ERROR(
        Project(layer.query_up->view(), 0, config_.QueryRows(), count, query));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView kv,
                           down.Narrow(1, latent.query_rank, latent.kv_rank));
  TESSERA_ASSIGN_OR_RETURN(const TensorView kept,
                           rows.Narrow(1, latent.rope, latent.kv_rank));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::RmsNorm{
      tensor_parallel::LatentOptions().norm_epsilon, kv, layer.key_norm->view(),
      kept, inverse}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rope,
      tensor_parallel::HeadsAt(down, 1,
                               {latent.query_rank + latent.kv_rank, 0,
                                latent.rope, latent.interleaved}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView kept_rope,
      tensor_parallel::HeadsAt(rows, 1, {0, 0, latent.rope}));
  return ops_.Run(tensor_parallel::op::Copy{rope, kept_rope});
}

// absorbed = [rotated elements, the others times the projection of keys].
absl::Status LlamaDecoder::AbsorbQueries(const LlamaLayerWeights& layer,
                                         int64_t count) {
  const model_files::LatentConfig& latent = config_.latent;
  const int64_t d = config_.head_size, width = latent.rope + latent.kv_rank;
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           scratch_->query.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView absorbed,
                           scratch_->absorbed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView from,
      tensor_parallel::HeadsAt(
          query, config_.heads,
          {latent.nope, d, latent.rope, latent.interleaved}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                           tensor_parallel::HeadsAt(absorbed, config_.heads,
                                                    {0, width, latent.rope}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Copy{from, to}));
  for (int64_t head = 0; head < config_.heads; ++head) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                             query.Narrow(1, head * d, latent.nope));
    TESSERA_ASSIGN_OR_RETURN(
        const ConstTensorView keys,
        layer.kv_up->view().Narrow(0, head * (latent.nope + latent.value),
                                   latent.nope));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView result,
        absorbed.Narrow(1, head * width + latent.rope, latent.kv_rank));
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(tensor_parallel::op::Gemm{{}, own, keys, result}));
  }
  return absl::OkStatus();
}

// attended = the projection of values of the weighted sums of latent vectors.
absl::Status LlamaDecoder::ProjectValues(const LlamaLayerWeights& layer,
                                         int64_t count) {
  const model_files::LatentConfig& latent = config_.latent;
  const int64_t width = latent.rope + latent.kv_rank;
  for (int64_t head = 0; head < config_.heads; ++head) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView rows,
                             scratch_->latents.view().Narrow(0, 0, count));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView own,
        rows.Narrow(1, head * width + latent.rope, latent.kv_rank));
    TESSERA_ASSIGN_OR_RETURN(
        const ConstTensorView values,
        layer.kv_up->view().Narrow(
            0, head * (latent.nope + latent.value) + latent.nope,
            latent.value));
    TESSERA_ASSIGN_OR_RETURN(const TensorView all,
                             scratch_->attended.view().Narrow(0, 0, count));
    TESSERA_ASSIGN_OR_RETURN(const TensorView result,
                             all.Narrow(1, head * latent.value, latent.value));
    TESSERA_RETURN_IF_ERROR(ops_.Run(
        tensor_parallel::op::Gemm{{.transpose_b = true}, own, values, result}));
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::NormaliseHeads(const std::optional<Tensor>& weight,
                                          TensorView heads) {
  if (!weight.has_value()) return absl::OkStatus();
  const int64_t width = weight->view().shape()[0];
  const int64_t rows = heads.element_count() / width;
  TESSERA_ASSIGN_OR_RETURN(const TensorView x, heads.Reshape({{rows, width}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse,
                           scratch_->inverse.view().Narrow(0, 0, rows));
  return ops_.Run(tensor_parallel::op::RmsNorm{config_.norm_epsilon, x,
                                               weight->view(), x, inverse});
}

absl::Status LlamaDecoder::Attend(Cache& cache, int64_t window,
                                  const std::optional<Tensor>& sinks,
                                  ConstTensorView query, Tensor& result) {
  const int64_t count = query.shape()[0];
  const int64_t kv_heads = config_.IsLatent() ? 1 : config_.kv_heads;
  TESSERA_ASSIGN_OR_RETURN(const TensorView all_keys,
                           cache.keys.view().Narrow(0, 0, length()));
  // The rows of latent vectors are both keys and values.
  const TensorView cached =
      cache.values ? cache.values->view() : cache.keys.view();
  TESSERA_ASSIGN_OR_RETURN(const TensorView all_values,
                           cached.Narrow(0, 0, length()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView keys, HeadsOf(all_keys, kv_heads));
  TESSERA_ASSIGN_OR_RETURN(const TensorView values,
                           HeadsOf(all_values, kv_heads));
  TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                           result.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView output,
                           HeadsOf(flat, config_.heads));
  TESSERA_ASSIGN_OR_RETURN(const TensorView log_sums,
                           scratch_->log_sums.view().Narrow(0, 0, count));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Fill{0, output}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Fill{
      -std::numeric_limits<double>::infinity(), log_sums}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView queries, OneSequence(query));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all_keys_of,
                           OneSequence(ConstTensorView(keys)));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all_values_of,
                           OneSequence(ConstTensorView(values)));
  TESSERA_ASSIGN_OR_RETURN(const TensorView outputs, OneSequence(output));
  TESSERA_ASSIGN_OR_RETURN(const TensorView statistics, OneSequence(log_sums));
  tensor_parallel::AttentionBlock block = {.query = queries,
                                           .key = all_keys_of,
                                           .value = all_values_of,
                                           .scale = config_.ScoreScale(),
                                           .cap = config_.attention_cap};
  std::vector<int64_t> first_keys;
  if (window > 0) {
    for (int64_t i = length() - count; i < length(); ++i) {
      first_keys.push_back(std::max<int64_t>(0, i + 1 - window));
    }
    TESSERA_ASSIGN_OR_RETURN(
        block.first_keys,
        ConstTensorView::Of(std::span<const int64_t>(first_keys),
                            {{1, count}}));
  }
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Attend{
      block, {.output = outputs, .log_sum_exp = statistics}}));
  return sinks ? AddSinks(*sinks, log_sums, flat) : absl::OkStatus();
}

absl::Status LlamaDecoder::AddSinks(const Tensor& sinks, TensorView log_sums,
                                    TensorView output) {
  const int64_t rows = log_sums.element_count();
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView factors,
      scratch_->factors.view().Narrow(0, 0, log_sums.shape()[0]));
  TESSERA_RETURN_IF_ERROR(
      ops_.Run(tensor_parallel::op::AddSinks{sinks.view(), log_sums, factors}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView scales, factors.Reshape({{rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView heads,
                           output.Reshape({{rows, config_.head_size}}));
  return ops_.Run(tensor_parallel::op::ScaleRows{scales, heads, heads});
}

absl::Status LlamaDecoder::RunMlp(const LlamaLayerWeights& layer,
                                  int64_t count) {
  const int64_t width = config_.intermediate;
  TESSERA_ASSIGN_OR_RETURN(const TensorView gate,
                           scratch_->gate.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView up,
                           scratch_->up.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView activation,
                           scratch_->activation.view().Narrow(0, 0, count));
  const ConstTensorView weight = layer.gate_up.view();
  TESSERA_RETURN_IF_ERROR(Project(weight, 0, width, count, gate));
  TESSERA_RETURN_IF_ERROR(Project(weight, width, 2 * width, count, up));
  TESSERA_RETURN_IF_ERROR(
      ops_.Run(tensor_parallel::op::Glu{config_.glu, gate, up, activation}));
  return AddOutput(activation, layer.down, /*bias=*/std::nullopt,
                   layer.mlp_output_norm, count);
}

absl::Status LlamaDecoder::RunMixture(const LlamaLayerWeights& layer,
                                      tensor_parallel::MoeMlp& mixture,
                                      int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView x,
                           scratch_->normed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView y,
                           scratch_->mixed.view().Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(const tensor_parallel::Partition tokens,
                           tensor_parallel::Partition::Balanced(count, 1));
  const absl::Status status =
      mixture.Forward(tokens, /*sequences=*/1, x, y, mixture_activations_);
  mixture_activations_.Clear();
  TESSERA_RETURN_IF_ERROR(status);
  return AddMixed(layer.mlp_output_norm, count);
}

absl::Status LlamaDecoder::ComputeLogits(int64_t begin, TensorView logits) {
  const int64_t rows = logits.shape()[0];
  TESSERA_RETURN_IF_ERROR(Normalise(&weights_.norm(), begin, rows));
  TESSERA_RETURN_IF_ERROR(
      Project(weights_.head(), 0, config_.vocabulary, rows, logits));
  if (config_.final_cap == 0) return absl::OkStatus();
  return ops_.Run(tensor_parallel::op::SoftCap{config_.final_cap, logits});
}

absl::StatusOr<std::vector<double>> LlamaDecoder::LogitsOf(int64_t row) {
  const TensorView logits = scratch_->logits.view();
  TESSERA_RETURN_IF_ERROR(ComputeLogits(row, logits));
  if (logits.dtype() == DType::kF64) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<double> values,
                             logits.AsSpan<double>());
    return std::vector<double>(values.begin(), values.end());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<float> values,
                           logits.AsSpan<float>());
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace tessera::train
