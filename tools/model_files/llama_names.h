// The parameters of Llama-like models in Tessera, and the mapping of their rows
// to the tensors of Hugging Face.
//
//   for (const LlamaParameter& parameter : LlamaParameters(config)) {
//     for (const HuggingFacePiece& piece :
//          PiecesOfRows(parameter, shard.begin, shard.end)) {
//       set.ReadRows(piece.name, piece.source_row, rows_of_shard);
//     }
//   }
//
// With q = heads * head_size rows, k = kv_heads * head_size, m = intermediate:
//
// clang-format off
//   Tessera                                shape          Hugging Face (model. ...)
//   embedding.weight                       vocab, hidden  embed_tokens.weight
//   layers.N.attention_norm.weight         hidden         layers.N.input_layernorm
//   layers.N.attention.qkv.weight          q+2k, hidden   ...self_attn.{q,k,v}_proj
//   layers.N.attention.qkv.bias            q+2k           ...self_attn.{q,k,v}_proj
//   layers.N.attention.output.weight       hidden, q      ...self_attn.o_proj
//   layers.N.attention.output.bias         hidden         ...self_attn.o_proj
//   layers.N.attention.sinks               heads          ...self_attn.sinks
//   layers.N.attention.query_norm.weight   head_size      ...self_attn.q_norm
//   layers.N.attention.key_norm.weight     head_size      ...self_attn.k_norm
//   layers.N.attention_output_norm.weight  hidden         ...post_attention_layernorm
//   layers.N.mlp_norm.weight               hidden         ...post_attention_layernorm
//   layers.N.mlp.gate_up.weight            2m, hidden     ...mlp.{gate,up}_proj
//   layers.N.mlp.down.weight               hidden, m      ...mlp.down_proj
//   layers.N.mlp.router.weight             E, hidden      ...mlp.gate
//   layers.N.mlp.router.bias               E              ...mlp.gate.e_score_correction_bias
//   layers.N.mlp.experts.gate_up.weight    2Ee, hidden    ...mlp.experts.I.{gate,up}_proj
//   layers.N.mlp.experts.down.weight       E hidden, e    ...mlp.experts.I.down_proj
//   layers.N.mlp.shared.gate_up.weight     2s, hidden     ...mlp.shared_experts.{gate,up}_proj
//   layers.N.mlp.shared.down.weight        hidden, s      ...mlp.shared_experts.down_proj
//   layers.N.mlp_output_norm.weight        hidden         ...post_feedforward_layernorm
//   head.norm.weight                       hidden         norm.weight
//   head.output.weight                     vocab, hidden  lm_head.weight
// clang-format on
//
// Layers with a mixture of E experts with e hidden units each, and shared
// experts with s hidden units, have the router, experts and shared parameters
// instead of gate_up and down. Mixtral's files call mlp block_sparse_moe, and
// the projections of an expert w1, w3 and w2. Phi 3's have the fused
// self_attn.qkv_proj and mlp.gate_up_proj. Gemma 2 and 3 call mlp_norm
// pre_feedforward_layernorm. The norms of queries and keys of OLMo 2 have q and
// k elements.
//
// GPT-OSS calls the router mlp.router and has biases: mlp.router.logit_bias,
// mlp.experts.gate_up.bias and mlp.experts.down.bias are mlp.router.bias,
// mlp.experts.gate_up_proj_bias and mlp.experts.down_proj_bias. Its tensors of
// experts, mlp.experts.gate_up_proj and so on, are stacked and transposed
// (stacked_experts.h).
//
// The fused rows are in the order of tensor_parallel's QkvParts and
// GatedMlpParts. Tied models have no head.output.weight; the config determines
// which biases and head norms exist. Nothing is transposed (both sides compute
// x w^T), and rows keep their order within a head: Hugging Face's weights
// expect rotary positions that rotate the pairs (i, i + head_size / 2), as
// tensor_parallel's Ops::Rotate does. Gemma's files store the weights of norms
// minus 1, as do Gemma 2 and 3. Meta's own files expect the pairs (2i, 2i + 1)
// and are not supported. Source: transformers' modeling_llama.py.
#ifndef TESSERA_TOOLS_MODEL_FILES_LLAMA_NAMES_H_
#define TESSERA_TOOLS_MODEL_FILES_LLAMA_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/model_files/model_config.h"
#include "tools/model_files/piece_place.h"
#include "tools/model_files/safetensors_header.h"
#include "tools/model_files/stacked_experts.h"

namespace tessera::model_files {

enum class LlamaPart {
  kEmbedding,
  kAttentionNorm,
  kQkv,
  kQkvBias,
  kAttentionOutput,
  kAttentionOutputBias,
  kQueryNorm,
  kKeyNorm,
  kSinks,
  kAttentionOutputNorm,
  kMlpNorm,
  kGateUp,
  kDown,
  kRouter,
  kRouterBias,
  kRouterLogitBias,
  kExpertsGateUp,
  kExpertsGateUpBias,
  kExpertsDown,
  kExpertsDownBias,
  kSharedGateUp,
  kSharedDown,
  kMlpOutputNorm,
  // The projections of latent attention (LatentProjection), in place of kQkv;
  // its norms are kQueryNorm and kKeyNorm.
  kLatentDown,
  kQueryUp,
  kKvUp,
  kFinalNorm,
  kHead,
};

// Maps `rows` rows of the Hugging Face tensor `name`, from `source_row` on, to
// the rows of a parameter from `target_row` on. The rows of a norm are its
// elements.
struct HuggingFacePiece {
  std::string name;
  int64_t source_row = 0;
  int64_t target_row = 0;
  int64_t rows = 0;

  friend bool operator==(const HuggingFacePiece&,
                         const HuggingFacePiece&) = default;
};

struct LlamaParameter {
  LlamaPart part = LlamaPart::kEmbedding;
  int64_t layer = -1;  // -1 outside of the layers.
  std::string name;
  std::vector<int64_t> shape;
  std::vector<HuggingFacePiece> pieces;  // Whole tensors, in the order of rows.
  // Added to the weights in the files: 1 for Gemma's norms.
  double offset = 0;
  // If given, the only piece has the rows in the order of the parameter, and
  // its tensor stores them in this way.
  std::optional<StackedExperts> stack = {};
};

// "layers.3.attention.qkv.weight", the name of the trainer's tensor; `layer` is
// ignored for parts outside of layers.
std::string LlamaParameterName(LlamaPart part, int64_t layer = -1);

// True for matrices that LoRA adapts.
bool IsAttentionMatrix(LlamaPart part);
bool IsMlpMatrix(LlamaPart part);

// The parts of a layer, in the order of the forward pass.
std::vector<LlamaPart> LayerPartsOf(const ModelConfig& config, int64_t layer);

// All parameters of a model, in the order of the forward pass. `config` must be
// valid.
std::vector<LlamaParameter> LlamaParameters(const ModelConfig& config);

// One parameter, for pipeline stages that hold some of them.
LlamaParameter MakeLlamaParameter(const ModelConfig& config, LlamaPart part,
                                  int64_t layer = -1);

// The pieces of the rows [begin, end) of a parameter.
std::vector<HuggingFacePiece> PiecesOfRows(const LlamaParameter& parameter,
                                           int64_t begin, int64_t end);

// The tensor of a piece in the files of transformers.
PiecePlace HuggingFacePlace(const LlamaParameter& parameter,
                            const HuggingFacePiece& piece);

// The tensors of a Hugging Face model with their full shapes, in the order of
// its state_dict, except for latent attention. `config` must be valid.
std::vector<StoredTensor> HuggingFaceTensors(const ModelConfig& config,
                                             ElementType type);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_LLAMA_NAMES_H_
