#include "tensor_parallel/blocks/testing/subject.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/testing/block_subjects.h"
#include "tensor_parallel/blocks/testing/layer_subjects.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/vocabulary.h"

namespace tessera::tensor_parallel {
namespace {

using namespace subject_internal;

using Made = absl::StatusOr<std::unique_ptr<Subject>>;

template <typename Wrapper, typename Layer>
Made Wrap(const Setting& setting, absl::StatusOr<Layer> layer) {
  TESSERA_RETURN_IF_ERROR(layer.status());
  return std::make_unique<Wrapper>(setting, *std::move(layer));
}

Made MakeLinear(const Setting& setting, bool columns) {
  const SubjectOptions& o = setting.options;
  if (columns) {
    return Wrap<LinearSubject<ColumnParallelLinear>>(
        setting,
        ColumnParallelLinear::Create(
            setting.tensor,
            {.in = o.width, .out = o.width, .bias = o.bias, .dtype = o.dtype}));
  }
  return Wrap<LinearSubject<RowParallelLinear>>(
      setting,
      RowParallelLinear::Create(setting.tensor, {.in = o.width,
                                                 .out = o.width,
                                                 .columns = {0, o.width},
                                                 .bias = o.bias,
                                                 .dtype = o.dtype}));
}

Made MakeBlock(const Setting& setting, const MoeOptions& moe,
               const AttentionOptions& attention) {
  return Wrap<BlockSubject>(
      setting, TransformerBlock::Create(
                   setting.tensor, setting.context,
                   {.attention = attention,
                    .hidden = setting.options.hidden,
                    .mlp_bias = setting.options.bias,
                    .moe = moe,
                    .norm_epsilon = 1e-3,
                    .recompute = setting.options.recompute,
                    .dropout = {.probability = setting.options.dropout,
                                .seed = 3,
                                .layer = 2}},
                   setting.context.group));
}

Made MakeHead(const Setting& setting) {
  const SubjectOptions& o = setting.options;
  return Wrap<HeadSubject>(
      setting, OutputHead::Create(setting.tensor, {.width = o.width,
                                                   .vocabulary = o.vocabulary,
                                                   .norm_epsilon = 1e-3,
                                                   .dtype = o.dtype,
                                                   .recompute = o.recompute}));
}

}  // namespace

void SubjectOptions::SetHeadsFor(int64_t ranks) {
  heads = ranks == 3 ? 4 : 6;
  kv_heads = ranks == 3 ? 1 : 2;
}

std::ostream& operator<<(std::ostream& os, SubjectKind kind) {
  constexpr const char* kNames[] = {"ColumnParallelLinear",
                                    "RowParallelLinear",
                                    "RmsNorm",
                                    "Embedding",
                                    "GatedMlp",
                                    "Attention",
                                    "TransformerBlock",
                                    "OutputHead",
                                    "MoeMlp",
                                    "MoeBlock",
                                    "LatentAttention",
                                    "LatentBlock"};
  return os << kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<std::unique_ptr<Subject>> MakeSubject(
    SubjectKind kind, const TensorGroup& tensor, const ContextGroup& context,
    const SubjectOptions& o, TensorPool& pool) {
  const Setting setting = {tensor, context, o, &pool};
  switch (kind) {
    case SubjectKind::kColumnParallelLinear:
    case SubjectKind::kRowParallelLinear:
      return MakeLinear(setting, kind == SubjectKind::kColumnParallelLinear);
    case SubjectKind::kRmsNorm:
      return Wrap<NormSubject>(setting,
                               RmsNorm::Create(tensor, setting.norm()));
    case SubjectKind::kEmbedding:
      return Wrap<EmbeddingSubject>(setting,
                                    VocabularyParallelEmbedding::Create(
                                        tensor, {.vocabulary = o.vocabulary,
                                                 .width = o.width,
                                                 .dtype = o.dtype}));
    case SubjectKind::kGatedMlp:
      return Wrap<MlpSubject>(
          setting, GatedMlp::Create(tensor, {.width = o.width,
                                             .hidden = o.hidden,
                                             .bias = o.bias,
                                             .dtype = o.dtype,
                                             .lora = setting.lora()}));
    case SubjectKind::kAttention:
      return Wrap<AttentionSubject>(
          setting, Attention::Create(tensor, context, setting.attention()));
    case SubjectKind::kTransformerBlock:
      return MakeBlock(setting, {}, setting.attention());
    case SubjectKind::kOutputHead:
      return MakeHead(setting);
    case SubjectKind::kMoeMlp:
      return Wrap<MoeSubject>(setting,
                              MoeMlp::Create({.tensor = tensor,
                                              .experts = context.group,
                                              .context = context.group},
                                             setting.moe()));
    case SubjectKind::kMoeBlock:
      return MakeBlock(setting, setting.moe(), setting.attention());
    case SubjectKind::kLatentAttention:
      return Wrap<AttentionSubject>(
          setting,
          Attention::Create(tensor, context, setting.latent_attention()));
    case SubjectKind::kLatentBlock:
      return MakeBlock(setting, {}, setting.latent_attention());
  }
  return absl::InvalidArgumentError("unknown kind");
}

}  // namespace tessera::tensor_parallel
