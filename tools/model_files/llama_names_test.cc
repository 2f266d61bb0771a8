#include "tools/model_files/llama_names.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"

namespace tessera::model_files {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModelConfig Small() {
  return {.vocabulary = 11,
          .hidden = 12,
          .intermediate = 20,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6};
}

TEST(LlamaNamesTest, HuggingFaceTensorsMatchTransformers) {
  // In the order of LlamaForCausalLM(config).state_dict() for Small().
  const std::vector<StoredTensor> tensors =
      HuggingFaceTensors(Small(), ElementType::kBF16);
  const auto spec = [](std::string name, std::vector<int64_t> shape) {
    return StoredTensor{std::move(name), ElementType::kBF16, std::move(shape)};
  };
  std::vector<StoredTensor> expected = {
      spec("model.embed_tokens.weight", {11, 12})};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {"self_attn.q_proj.weight", {24, 12}},
             {"self_attn.k_proj.weight", {12, 12}},
             {"self_attn.v_proj.weight", {12, 12}},
             {"self_attn.o_proj.weight", {12, 24}},
             {"mlp.gate_proj.weight", {20, 12}},
             {"mlp.up_proj.weight", {20, 12}},
             {"mlp.down_proj.weight", {12, 20}},
             {"input_layernorm.weight", {12}},
             {"post_attention_layernorm.weight", {12}}}) {
      expected.push_back(spec(layer + name, shape));
    }
  }
  expected.push_back(spec("model.norm.weight", {12}));
  expected.push_back(spec("lm_head.weight", {11, 12}));
  EXPECT_EQ(tensors, expected);
}

// In the order of transformers' state_dict().
TEST(LlamaNamesTest, BiasesFollowTheirWeights) {
  ModelConfig config = Small();
  config.qkv_bias = config.output_bias = true;
  std::vector<std::string> names;
  for (const StoredTensor& tensor :
       HuggingFaceTensors(config, ElementType::kF32)) {
    if (tensor.name.find("layers.1.self_attn") == std::string::npos) continue;
    names.push_back(tensor.name.substr(25));
    if (names.back() == "k_proj.bias") {
      EXPECT_THAT(tensor.shape, ElementsAre(12));
    }
  }
  EXPECT_THAT(names,
              ElementsAre("q_proj.weight", "q_proj.bias", "k_proj.weight",
                          "k_proj.bias", "v_proj.weight", "v_proj.bias",
                          "o_proj.weight", "o_proj.bias"));
  EXPECT_THAT(LayerPartsOf(config, 0),
              ElementsAre(LlamaPart::kAttentionNorm, LlamaPart::kQkv,
                          LlamaPart::kQkvBias, LlamaPart::kAttentionOutput,
                          LlamaPart::kAttentionOutputBias, LlamaPart::kMlpNorm,
                          LlamaPart::kGateUp, LlamaPart::kDown));
}

TEST(LlamaNamesTest, NormsOfHeadsFollowTheProjections) {
  ModelConfig config = Small();
  config.architecture = Architecture::kQwen3;
  std::vector<std::string> names;
  for (const StoredTensor& tensor :
       HuggingFaceTensors(config, ElementType::kF32)) {
    if (tensor.name.find("layers.1.self_attn") == std::string::npos) continue;
    names.push_back(tensor.name.substr(25));
    if (names.back().find("norm") != std::string::npos) {
      EXPECT_THAT(tensor.shape, ElementsAre(6));
    }
  }
  EXPECT_THAT(names,
              ElementsAre("q_proj.weight", "k_proj.weight", "v_proj.weight",
                          "o_proj.weight", "q_norm.weight", "k_norm.weight"));
  EXPECT_THAT(LayerPartsOf(config, 0),
              ElementsAre(LlamaPart::kAttentionNorm, LlamaPart::kQkv,
                          LlamaPart::kAttentionOutput, LlamaPart::kQueryNorm,
                          LlamaPart::kKeyNorm, LlamaPart::kMlpNorm,
                          LlamaPart::kGateUp, LlamaPart::kDown));
}

TEST(LlamaNamesTest, OwnParametersAreMadeOfEveryTensorOnce) {
  std::vector<ModelConfig> configs;
  for (const std::string_view preset : PresetNames()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ModelConfig config, PresetConfig(preset));
    configs.push_back(config);
    if (config.IsLatent() || config.traits().sinks) continue;
    config.qkv_bias = config.output_bias = true;
    configs.push_back(config);
    config.architecture = Architecture::kQwen2;
    config.output_bias = false;
    configs.push_back(config);
    config.architecture = Architecture::kQwen3;
    config.qkv_bias = false;
    configs.push_back(config);
  }
  for (const ModelConfig& config : configs) {
    std::map<std::string, int64_t> elements_left;
    int64_t elements = 0;
    for (const StoredTensor& tensor :
         HuggingFaceTensors(config, ElementType::kU8)) {
      elements_left[tensor.name] = *TensorBytes(tensor);
      elements += *TensorBytes(tensor);
    }
    EXPECT_EQ(elements, config.ParameterCount());
    std::set<std::string> names;
    int64_t own_elements = 0;
    for (const LlamaParameter& parameter : LlamaParameters(config)) {
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      EXPECT_EQ(parameter.name,
                LlamaParameterName(parameter.part, parameter.layer));
      own_elements += *TensorBytes({"", ElementType::kU8, parameter.shape});
      const int64_t columns =
          parameter.shape.size() == 2 ? parameter.shape[1] : 1;
      int64_t row = 0;
      for (const HuggingFacePiece& piece : parameter.pieces) {
        EXPECT_EQ(piece.target_row, row);
        EXPECT_EQ(piece.source_row, 0);
        row += piece.rows;
        elements_left[piece.name] -= piece.rows * columns;
      }
      EXPECT_EQ(row, parameter.shape[0]);
    }
    EXPECT_EQ(own_elements, config.ParameterCount());
    for (const auto& [name, left] : elements_left) EXPECT_EQ(left, 0) << name;
    EXPECT_EQ(names.contains("head.output.weight"), !config.tied_embeddings);
  }
}

// The names and shapes of a layer's tensors.
std::map<std::string, std::vector<int64_t>> TensorsOfLayer(
    const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>> tensors;
  for (const StoredTensor& tensor :
       HuggingFaceTensors(config, ElementType::kF32)) {
    const size_t at = tensor.name.find("layers.1.");
    if (at != std::string::npos) {
      tensors[tensor.name.substr(at + 9)] = tensor.shape;
    }
  }
  return tensors;
}

// As in transformers' state_dict() of Phi3ForCausalLM, Olmo2ForCausalLM and
// Gemma2ForCausalLM.
TEST(LlamaNamesTest, ArchitecturesHaveTheirNames) {
  using Tensors = std::map<std::string, std::vector<int64_t>>;
  ModelConfig phi = Small();
  phi.architecture = Architecture::kPhi3;
  EXPECT_EQ(TensorsOfLayer(phi),
            (Tensors{{"self_attn.qkv_proj.weight", {48, 12}},
                     {"self_attn.o_proj.weight", {12, 24}},
                     {"mlp.gate_up_proj.weight", {40, 12}},
                     {"mlp.down_proj.weight", {12, 20}},
                     {"input_layernorm.weight", {12}},
                     {"post_attention_layernorm.weight", {12}}}));
  ModelConfig olmo = Small();
  olmo.architecture = Architecture::kOlmo2;
  Tensors expected = TensorsOfLayer(Small());
  expected.erase("input_layernorm.weight");
  expected["post_feedforward_layernorm.weight"] = {12};
  expected["self_attn.q_norm.weight"] = {24};
  expected["self_attn.k_norm.weight"] = {12};
  EXPECT_EQ(TensorsOfLayer(olmo), expected);
  ModelConfig gemma = Small();
  gemma.architecture = Architecture::kGemma2;
  expected = TensorsOfLayer(Small());
  expected["pre_feedforward_layernorm.weight"] = {12};
  expected["post_feedforward_layernorm.weight"] = {12};
  EXPECT_EQ(TensorsOfLayer(gemma), expected);
  EXPECT_EQ(MakeLlamaParameter(gemma, LlamaPart::kMlpOutputNorm, 1).offset, 1);
}

TEST(LlamaNamesTest, FusedRowsAreInTheOrderOfThePartition) {
  const ModelConfig config = Small();
  const LlamaParameter qkv = MakeLlamaParameter(config, LlamaPart::kQkv, 1);
  const auto parts = tensor_parallel::QkvParts(config.heads, config.kv_heads,
                                               config.head_size, 2);
  TESSERA_ASSERT_OK(parts);
  ASSERT_EQ(parts->size(), qkv.pieces.size());
  for (size_t i = 0; i < parts->size(); ++i) {
    EXPECT_EQ((*parts)[i].size, qkv.pieces[i].rows);
  }
  const LlamaParameter gate_up =
      MakeLlamaParameter(config, LlamaPart::kGateUp, 0);
  const auto gated = tensor_parallel::GatedMlpParts(config.intermediate);
  ASSERT_EQ(gated.size(), gate_up.pieces.size());
  for (size_t i = 0; i < gated.size(); ++i) {
    EXPECT_EQ(gated[i].size, gate_up.pieces[i].rows);
  }
}

TEST(LlamaNamesTest, PiecesMatchRowsOfWhole) {
  const ModelConfig config = Small();
  for (const LlamaParameter& parameter : LlamaParameters(config)) {
    std::vector<std::pair<std::string, int64_t>> row_of;
    for (const HuggingFacePiece& piece : parameter.pieces) {
      for (int64_t row = 0; row < piece.rows; ++row) {
        row_of.push_back({piece.name, row});
      }
    }
    for (int64_t begin = 0; begin <= parameter.shape[0]; ++begin) {
      for (int64_t end = begin; end <= parameter.shape[0]; ++end) {
        int64_t next = begin;
        for (const HuggingFacePiece& piece :
             PiecesOfRows(parameter, begin, end)) {
          ASSERT_EQ(piece.target_row, next);
          ASSERT_GT(piece.rows, 0);
          for (int64_t row = 0; row < piece.rows; ++row, ++next) {
            ASSERT_EQ(row_of[static_cast<size_t>(next)],
                      std::pair(piece.name, piece.source_row + row));
          }
        }
        ASSERT_EQ(next, end);
      }
    }
  }
}

TEST(LlamaNamesTest, ShardsOfARankComeFromTheRightRows) {
  const LlamaParameter qkv =
      MakeLlamaParameter(Small(), LlamaPart::kQkv, 0);  // 24 + 12 + 12
  EXPECT_THAT(
      PiecesOfRows(qkv, 20, 40),
      ElementsAre(
          HuggingFacePiece{"model.layers.0.self_attn.q_proj.weight", 20, 20, 4},
          HuggingFacePiece{"model.layers.0.self_attn.k_proj.weight", 0, 24, 12},
          HuggingFacePiece{"model.layers.0.self_attn.v_proj.weight", 0, 36,
                           4}));
  EXPECT_THAT(PiecesOfRows(qkv, 7, 7), IsEmpty());
}

}  // namespace
}  // namespace tessera::model_files
