#include "tools/train/checkpoint/run_tensor_names.h"

#include "absl/strings/str_cat.h"

namespace tessera::train {
namespace {

using model_files::LlamaPart;

std::string OfLayer(int64_t layer, std::string_view name) {
  return absl::StrCat("layers.", layer, ".", name);
}

}  // namespace

std::string RunTensorName(LlamaPart part, int64_t layer) {
  switch (part) {
    case LlamaPart::kEmbedding:
      return std::string(kEmbeddingTensor);
    case LlamaPart::kAttentionNorm:
      return OfLayer(layer, "attention_norm.weight");
    case LlamaPart::kQkv:
      return OfLayer(layer, "attention.qkv.weight");
    case LlamaPart::kAttentionOutput:
      return OfLayer(layer, "attention.output.weight");
    case LlamaPart::kMlpNorm:
      return OfLayer(layer, "mlp_norm.weight");
    case LlamaPart::kGateUp:
      return OfLayer(layer, "mlp.gate_up.weight");
    case LlamaPart::kDown:
      return OfLayer(layer, "mlp.down.weight");
    case LlamaPart::kFinalNorm:
      return "head.norm.weight";
    case LlamaPart::kHead:
      break;
  }
  return std::string(kHeadTensor);
}

std::string_view SourceOfTied(const model_files::ModelConfig& config,
                              std::string_view name) {
  return config.tied_embeddings && name == kHeadTensor ? kEmbeddingTensor
                                                       : name;
}

}  // namespace tessera::train
