#include "tools/train/sample/llama_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

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
  LlamaLayerWeights weights;
  for (const LlamaPart part :
       model_files::LayerPartsOf(reader.config(), layer)) {
    TESSERA_ASSIGN_OR_RETURN(Tensor tensor,
                             ReadPart(reader, dtype, part, layer));
    weights.emplace(part, std::move(tensor));
  }
  return weights;
}

// Null if the layer does not have the part.
const Tensor* Find(const LlamaLayerWeights& layer, LlamaPart part) {
  const auto found = layer.find(part);
  return found == layer.end() ? nullptr : &found->second;
}

// Tokens per batch.
constexpr int64_t kMostAtOnce = 128;
// Rows of logits per batch, fewer because they are as wide as the vocabulary.
constexpr int64_t kRowsScoredAtOnce = 16;

// [rows, ...] viewed as [1, rows, ...]. The elements are consecutive.
TensorView OneSequence(const TensorView& x) {
  std::vector<int64_t> shape = {1};
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  return *x.Reshape(shape);
}

// Consecutive rows viewed as [rows, heads, head size].
TensorView HeadsOf(const TensorView& x, int64_t heads) {
  return *x.Reshape({{x.shape()[0], heads, x.shape()[1] / heads}});
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
    std::vector<Tensor*> weights;
    for (const LlamaPart part :
         {LlamaPart::kRouter, LlamaPart::kRouterBias,
          LlamaPart::kRouterLogitBias, LlamaPart::kExpertsGateUp,
          LlamaPart::kExpertsGateUpBias, LlamaPart::kExpertsDown,
          LlamaPart::kExpertsDownBias, LlamaPart::kSharedGateUp,
          LlamaPart::kSharedDown}) {
      const auto found = layer.find(part);
      if (found != layer.end()) weights.push_back(&found->second);
    }
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
  const std::pair<Rows, int64_t> widths[] = {
      {Rows::kHidden, config_.hidden},
      {Rows::kNormed, config_.hidden},
      {Rows::kQuery, config_.QueryRows()},
      {Rows::kAttended, config_.OutputColumns()},
      {Rows::kDown, config_.IsLatent() ? config_.LatentRows() : 0},
      {Rows::kAbsorbed, config_.heads * latent},
      {Rows::kLatents, config_.heads * latent},
      {Rows::kLogSums, config_.heads},
      {Rows::kFactors, config_.heads},
      {Rows::kGate, config_.intermediate},
      {Rows::kUp, config_.intermediate},
      {Rows::kActivation, config_.intermediate},
      {Rows::kMixed, config_.hidden}};
  for (const auto& [name, width] : widths) {
    TESSERA_ASSIGN_OR_RETURN(Tensor tensor, matrix(rows, width));
    scratch_.emplace(name, std::move(tensor));
  }
  TESSERA_ASSIGN_OR_RETURN(inverse_,
                           Tensor::Create(dtype, {{rows * config_.heads}}));
  TESSERA_ASSIGN_OR_RETURN(logits_, matrix(1, config_.vocabulary));
  return absl::OkStatus();
}

TensorView LlamaDecoder::First(Rows rows, int64_t count) {
  return *scratch_.at(rows).view().Narrow(0, 0, count);
}

TensorView LlamaDecoder::Inverse(int64_t count) {
  return *inverse_->view().Narrow(0, 0, count);
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
  const int64_t before = length_;
  const int64_t end = before + static_cast<int64_t>(tokens.size());
  rotary_.rotation = config_.rotary.Of(config_.RotarySize(), end);
  if (config_.local_rotary.has_value()) {
    local_rotary_.rotation = config_.local_rotary->Of(config_.head_size, end);
  }
  for (size_t first = 0; first < tokens.size();) {
    const size_t count =
        std::min(tokens.size() - first, static_cast<size_t>(kMostAtOnce));
    absl::Status status = RunBatch(tokens.subspan(first, count));
    if (status.ok()) status = after(first, count);
    if (!status.ok()) {
      length_ = before;
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
  TESSERA_RETURN_IF_ERROR(SetRotaryTables(first, count));
  length_ += count;
  const TensorView hidden = First(Rows::kHidden, count);
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView ids,
                           ConstTensorView::Of(tokens, {{count}}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::GatherRows{
      weights_.embedding(), {0, config_.vocabulary}, ids, hidden}));
  if (config_.traits().scaled_embedding) {
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Scale{
        config_.EmbeddingScale(hidden.dtype()), hidden}));
  }
  for (size_t i = 0; i < caches_.size(); ++i) {
    const LlamaLayerWeights& layer = weights_.layers()[i];
    TESSERA_RETURN_IF_ERROR(RunAttention(i, first, count));
    TESSERA_RETURN_IF_ERROR(
        Normalise(Find(layer, LlamaPart::kMlpNorm), 0, count));
    TESSERA_RETURN_IF_ERROR(mixtures_[i]
                                ? RunMixture(layer, *mixtures_[i], count)
                                : RunMlp(layer, count));
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::Normalise(const Tensor* weight, int64_t begin,
                                     int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView x,
      First(Rows::kHidden, begin + count).Narrow(0, begin, count));
  const TensorView y = First(Rows::kNormed, count);
  if (weight == nullptr) return ops_.Run(tensor_parallel::op::Copy{x, y});
  return ops_.Run(tensor_parallel::op::RmsNorm{
      config_.norm_epsilon, x, weight->view(), y, Inverse(count)});
}

absl::Status LlamaDecoder::AddAttended(const LlamaLayerWeights& layer,
                                       int64_t count) {
  return AddOutput(First(Rows::kAttended, count),
                   layer.at(LlamaPart::kAttentionOutput),
                   Find(layer, LlamaPart::kAttentionOutputBias),
                   Find(layer, LlamaPart::kAttentionOutputNorm), count);
}

absl::Status LlamaDecoder::AddOutput(ConstTensorView x, const Tensor& weight,
                                     const Tensor* bias, const Tensor* norm,
                                     int64_t count) {
  const bool adds = norm == nullptr;
  const TensorView y = First(adds ? Rows::kHidden : Rows::kMixed, count);
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Gemm{
      {.transpose_b = true, .beta = adds ? 1.0 : 0.0}, x, weight.view(), y}));
  if (bias != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(tensor_parallel::op::AddBias{bias->view(), y}));
  }
  return adds ? absl::OkStatus() : AddMixed(norm, count);
}

absl::Status LlamaDecoder::AddMixed(const Tensor* norm, int64_t count) {
  const TensorView mixed = First(Rows::kMixed, count);
  if (norm != nullptr) {
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::RmsNorm{
        config_.norm_epsilon, mixed, norm->view(), mixed, Inverse(count)}));
  }
  return ops_.Run(tensor_parallel::op::Add{mixed, First(Rows::kHidden, count)});
}

absl::Status LlamaDecoder::Project(ConstTensorView weight, int64_t begin,
                                   int64_t end, int64_t count, TensorView y) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView rows,
                           weight.Narrow(0, begin, end - begin));
  return ops_.Run(tensor_parallel::op::Gemm{
      {.transpose_b = true}, First(Rows::kNormed, count), rows, y});
}

absl::Status LlamaDecoder::SetRotaryTables(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  for (RotaryTable* const table : {&rotary_, &local_rotary_}) {
    const auto pairs = static_cast<int64_t>(table->rotation.frequencies.size());
    TESSERA_ASSIGN_OR_RETURN(
        table->values,
        Tensor::Create(weights_.embedding().dtype(), {{count, 2 * pairs}}));
    tensor_parallel::SetRotaryTable(table->rotation, positions,
                                    table->values->view());
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::Rotate(size_t number, TensorView heads) {
  const tensor_parallel::RotaryFrequencies* const rotary =
      config_.RotaryOf(static_cast<int64_t>(number));
  if (rotary == nullptr) return absl::OkStatus();
  const RotaryTable& table =
      rotary == &config_.rotary ? rotary_ : local_rotary_;
  return ops_.Run(tensor_parallel::op::Rotate{/*inverse=*/false,
                                              table.values->view(), heads});
}

absl::Status LlamaDecoder::RunAttention(size_t number, int64_t first,
                                        int64_t count) {
  const LlamaLayerWeights& layer = weights_.layers()[number];
  Cache& cache = caches_[number];
  if (config_.IsLatent()) return RunLatentAttention(number, first, count);
  const int64_t q = config_.QueryRows(), kv = config_.KvRows();
  TESSERA_RETURN_IF_ERROR(
      Normalise(Find(layer, LlamaPart::kAttentionNorm), 0, count));
  const TensorView query = First(Rows::kQuery, count);
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_keys,
                           cache.keys.view().Narrow(0, first, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_values,
                           cache.values->view().Narrow(0, first, count));
  const Tensor* const biases = Find(layer, LlamaPart::kQkvBias);
  const auto project = [&](int64_t begin, int64_t end,
                           const TensorView& y) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(
        Project(layer.at(LlamaPart::kQkv).view(), begin, end, count, y));
    if (biases == nullptr) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView bias,
                             biases->view().Narrow(0, begin, end - begin));
    return ops_.Run(tensor_parallel::op::AddBias{bias, y});
  };
  TESSERA_RETURN_IF_ERROR(project(0, q, query));
  TESSERA_RETURN_IF_ERROR(project(q, q + kv, new_keys));
  TESSERA_RETURN_IF_ERROR(project(q + kv, q + 2 * kv, new_values));
  const TensorView query_heads = HeadsOf(query, config_.heads);
  const TensorView key_heads = HeadsOf(new_keys, config_.kv_heads);
  TESSERA_RETURN_IF_ERROR(
      NormaliseHeads(Find(layer, LlamaPart::kQueryNorm), query_heads));
  TESSERA_RETURN_IF_ERROR(
      NormaliseHeads(Find(layer, LlamaPart::kKeyNorm), key_heads));
  TESSERA_RETURN_IF_ERROR(Rotate(number, query_heads));
  TESSERA_RETURN_IF_ERROR(Rotate(number, key_heads));
  TESSERA_RETURN_IF_ERROR(
      Attend(cache, config_.WindowOf(static_cast<int64_t>(number)),
             Find(layer, LlamaPart::kSinks), query_heads, Rows::kAttended));
  return AddAttended(layer, count);
}

absl::Status LlamaDecoder::RunLatentAttention(size_t number, int64_t first,
                                              int64_t count) {
  const LlamaLayerWeights& layer = weights_.layers()[number];
  Cache& cache = caches_[number];
  TESSERA_RETURN_IF_ERROR(
      Normalise(Find(layer, LlamaPart::kAttentionNorm), 0, count));
  TESSERA_ASSIGN_OR_RETURN(const TensorView new_keys,
                           cache.keys.view().Narrow(0, first, count));
  TESSERA_RETURN_IF_ERROR(SetLatents(layer, new_keys));
  TESSERA_RETURN_IF_ERROR(AbsorbQueries(layer, count));
  const TensorView query =
      HeadsOf(First(Rows::kAbsorbed, count), config_.heads);
  TESSERA_RETURN_IF_ERROR(Rotate(number, HeadsOf(new_keys, 1)));
  TESSERA_RETURN_IF_ERROR(Rotate(number, query));
  TESSERA_RETURN_IF_ERROR(
      Attend(cache, /*window=*/0, /*sinks=*/nullptr, query, Rows::kLatents));
  TESSERA_RETURN_IF_ERROR(ProjectValues(layer, count));
  return AddAttended(layer, count);
}

absl::Status LlamaDecoder::SetLatents(const LlamaLayerWeights& layer,
                                      const TensorView& rows) {
  const model_files::LatentConfig& latent = config_.latent;
  const int64_t count = rows.shape()[0];
  const TensorView down = First(Rows::kDown, count);
  const TensorView query = First(Rows::kQuery, count);
  const auto normalise = [&](const TensorView& x, LlamaPart norm,
                             const TensorView& y) {
    return ops_.Run(tensor_parallel::op::RmsNorm{
        tensor_parallel::LatentOptions().norm_epsilon, x, layer.at(norm).view(),
        y, Inverse(count)});
  };
  const ConstTensorView query_up = layer.at(LlamaPart::kQueryUp).view();
  TESSERA_RETURN_IF_ERROR(Project(layer.at(LlamaPart::kLatentDown).view(), 0,
                                  config_.LatentRows(), count, down));
  if (latent.query_rank > 0) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                             down.Narrow(1, 0, latent.query_rank));
    TESSERA_RETURN_IF_ERROR(normalise(own, LlamaPart::kQueryNorm, own));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Gemm{
        {.transpose_b = true}, own, query_up, query}));
  } else {
    TESSERA_RETURN_IF_ERROR(
        Project(query_up, 0, config_.QueryRows(), count, query));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView kv,
                           down.Narrow(1, latent.query_rank, latent.kv_rank));
  TESSERA_ASSIGN_OR_RETURN(const TensorView kept,
                           rows.Narrow(1, latent.rope, latent.kv_rank));
  TESSERA_RETURN_IF_ERROR(normalise(kv, LlamaPart::kKeyNorm, kept));
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
  const ConstTensorView kv_up = layer.at(LlamaPart::kKvUp).view();
  const int64_t d = config_.head_size, width = latent.rope + latent.kv_rank;
  const TensorView query = First(Rows::kQuery, count);
  const TensorView absorbed = First(Rows::kAbsorbed, count);
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
        kv_up.Narrow(0, head * (latent.nope + latent.value), latent.nope));
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
  const ConstTensorView kv_up = layer.at(LlamaPart::kKvUp).view();
  const TensorView rows = First(Rows::kLatents, count);
  const TensorView all = First(Rows::kAttended, count);
  const int64_t width = latent.rope + latent.kv_rank;
  for (int64_t head = 0; head < config_.heads; ++head) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView own,
        rows.Narrow(1, head * width + latent.rope, latent.kv_rank));
    TESSERA_ASSIGN_OR_RETURN(
        const ConstTensorView values,
        kv_up.Narrow(0, head * (latent.nope + latent.value) + latent.nope,
                     latent.value));
    TESSERA_ASSIGN_OR_RETURN(const TensorView result,
                             all.Narrow(1, head * latent.value, latent.value));
    TESSERA_RETURN_IF_ERROR(ops_.Run(
        tensor_parallel::op::Gemm{{.transpose_b = true}, own, values, result}));
  }
  return absl::OkStatus();
}

absl::Status LlamaDecoder::NormaliseHeads(const Tensor* weight,
                                          TensorView heads) {
  if (weight == nullptr) return absl::OkStatus();
  const int64_t width = weight->view().shape()[0];
  const int64_t rows = heads.element_count() / width;
  TESSERA_ASSIGN_OR_RETURN(const TensorView x, heads.Reshape({{rows, width}}));
  return ops_.Run(tensor_parallel::op::RmsNorm{
      config_.norm_epsilon, x, weight->view(), x, Inverse(rows)});
}

absl::Status LlamaDecoder::Attend(Cache& cache, int64_t window,
                                  const Tensor* sinks, const TensorView& query,
                                  Rows result) {
  const int64_t count = query.shape()[0];
  const int64_t kv_heads = config_.IsLatent() ? 1 : config_.kv_heads;
  TESSERA_ASSIGN_OR_RETURN(const TensorView keys,
                           cache.keys.view().Narrow(0, 0, length()));
  // The rows of latent vectors are both keys and values.
  Tensor& cached = cache.values ? *cache.values : cache.keys;
  TESSERA_ASSIGN_OR_RETURN(const TensorView values,
                           cached.view().Narrow(0, 0, length()));
  const TensorView flat = First(result, count);
  const TensorView output = HeadsOf(flat, config_.heads);
  const TensorView log_sums = First(Rows::kLogSums, count);
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Fill{0, output}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tensor_parallel::op::Fill{
      -std::numeric_limits<double>::infinity(), log_sums}));
  tensor_parallel::AttentionBlock block = {
      .query = OneSequence(query),
      .key = OneSequence(HeadsOf(keys, kv_heads)),
      .value = OneSequence(HeadsOf(values, kv_heads)),
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
      block,
      {.output = OneSequence(output), .log_sum_exp = OneSequence(log_sums)}}));
  return sinks != nullptr ? AddSinks(*sinks, log_sums, flat) : absl::OkStatus();
}

absl::Status LlamaDecoder::AddSinks(const Tensor& sinks, TensorView log_sums,
                                    TensorView output) {
  const int64_t rows = log_sums.element_count();
  const TensorView factors = First(Rows::kFactors, log_sums.shape()[0]);
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
  const TensorView gate = First(Rows::kGate, count);
  const TensorView up = First(Rows::kUp, count);
  const TensorView activation = First(Rows::kActivation, count);
  const ConstTensorView weight = layer.at(LlamaPart::kGateUp).view();
  TESSERA_RETURN_IF_ERROR(Project(weight, 0, width, count, gate));
  TESSERA_RETURN_IF_ERROR(Project(weight, width, 2 * width, count, up));
  TESSERA_RETURN_IF_ERROR(ops_.Run(
      tensor_parallel::op::Glu{config_.traits().glu, gate, up, activation}));
  return AddOutput(activation, layer.at(LlamaPart::kDown), /*bias=*/nullptr,
                   Find(layer, LlamaPart::kMlpOutputNorm), count);
}

absl::Status LlamaDecoder::RunMixture(const LlamaLayerWeights& layer,
                                      tensor_parallel::MoeMlp& mixture,
                                      int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const tensor_parallel::Partition tokens,
                           tensor_parallel::Partition::Balanced(count, 1));
  const absl::Status status =
      mixture.Forward(tokens, /*sequences=*/1, First(Rows::kNormed, count),
                      First(Rows::kMixed, count), mixture_activations_);
  mixture_activations_.Clear();
  TESSERA_RETURN_IF_ERROR(status);
  return AddMixed(Find(layer, LlamaPart::kMlpOutputNorm), count);
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
  const TensorView logits = logits_->view();
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
