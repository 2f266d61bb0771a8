#include "tools/train/sample/llama_weights.h"

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "tools/model_files/llama_names.h"

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
  const auto read = [&](LlamaPart part) {
    return ReadPart(reader, dtype, part, layer);
  };
  TESSERA_ASSIGN_OR_RETURN(Tensor attention_norm,
                           read(LlamaPart::kAttentionNorm));
  TESSERA_ASSIGN_OR_RETURN(Tensor qkv, read(LlamaPart::kQkv));
  TESSERA_ASSIGN_OR_RETURN(Tensor output, read(LlamaPart::kAttentionOutput));
  TESSERA_ASSIGN_OR_RETURN(Tensor mlp_norm, read(LlamaPart::kMlpNorm));
  TESSERA_ASSIGN_OR_RETURN(Tensor gate_up, read(LlamaPart::kGateUp));
  TESSERA_ASSIGN_OR_RETURN(Tensor down, read(LlamaPart::kDown));
  return LlamaLayerWeights{std::move(attention_norm), std::move(qkv),
                           std::move(output),         std::move(mlp_norm),
                           std::move(gate_up),        std::move(down)};
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

}  // namespace tessera::train
