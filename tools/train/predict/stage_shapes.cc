#include "tools/train/predict/stage_shapes.h"

#include "base/status_macros.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::train {

namespace tp = tensor_parallel;

namespace {

absl::Status SetTokens(const RunOptions& options, const RankPlace& place,
                       StageShapes& shapes) {
  const auto layout_of = options.zigzag ? tp::SequenceLayout::Zigzag
                                        : tp::SequenceLayout::Contiguous;
  TESSERA_ASSIGN_OR_RETURN(const tp::SequenceLayout layout,
                           layout_of(options.length, options.mesh.cp));
  for (int64_t rank = 0; rank < options.mesh.cp; ++rank) {
    shapes.positions.push_back(layout.SizeOf(rank));
  }
  shapes.context_rank = place.cp;
  shapes.sequences = options.micro_batch;
  shapes.tokens = shapes.sequences * layout.SizeOf(place.cp);
  TESSERA_ASSIGN_OR_RETURN(
      const tp::Partition tokens,
      tp::Partition::Balanced(shapes.tokens, options.mesh.tp));
  shapes.rows =
      options.sequence_parallel ? tokens.SizeOf(place.tp) : shapes.tokens;
  return absl::OkStatus();
}

absl::Status SetAttention(const RunOptions& options, const RankPlace& place,
                          StageShapes& shapes) {
  const model_files::ModelConfig& model = options.model;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<tp::FusedPart> parts,
                           tp::QkvParts(model.heads, model.kv_heads,
                                        model.head_size, options.mesh.tp));
  TESSERA_ASSIGN_OR_RETURN(const tp::FusedPartition partition,
                           tp::FusedPartition::Create(parts, options.mesh.tp));
  shapes.head_size = model.head_size;
  shapes.qkv = partition.SizeOf(place.tp);
  shapes.query = partition.RangeOf(0, place.tp).size();
  shapes.heads = shapes.query / model.head_size;
  shapes.kv_heads = partition.RangeOf(1, place.tp).size() / model.head_size;
  for (int64_t part = 0; part < static_cast<int64_t>(parts.size()); ++part) {
    const tp::FusedPart& fused = parts[static_cast<size_t>(part)];
    if (!fused.replicated || fused.groups == options.mesh.tp) continue;
    shapes.shared_kv += partition.LocalRange(part, place.tp).size();
  }
  return absl::OkStatus();
}

absl::Status SetWide(const RunOptions& options, const RankPlace& place,
                     StageShapes& shapes) {
  const std::vector<tp::FusedPart> parts =
      tp::GatedMlpParts(options.model.intermediate);
  TESSERA_ASSIGN_OR_RETURN(const tp::FusedPartition partition,
                           tp::FusedPartition::Create(parts, options.mesh.tp));
  shapes.gate_up = partition.SizeOf(place.tp);
  shapes.intermediate = partition.RangeOf(0, place.tp).size();
  TESSERA_ASSIGN_OR_RETURN(
      const tp::Partition vocabulary,
      tp::Partition::Balanced(options.model.vocabulary, options.mesh.tp));
  shapes.vocabulary = vocabulary.SizeOf(place.tp);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StageShapes> StageShapes::Of(const RunOptions& options,
                                            const RankPlace& place,
                                            const StageSpan& span) {
  StageShapes shapes;
  shapes.layers = span.layers.size();
  shapes.is_first = span.is_first;
  shapes.is_last = span.is_last;
  shapes.tied_here =
      options.model.tied_embeddings && span.is_first && span.is_last;
  shapes.sequence_parallel = options.sequence_parallel;
  shapes.recompute = options.recompute;
  shapes.dtype = options.dtype;
  shapes.statistics = tp::GradientDType(options.dtype);
  shapes.hidden = options.model.hidden;
  TESSERA_RETURN_IF_ERROR(SetTokens(options, place, shapes));
  TESSERA_RETURN_IF_ERROR(SetAttention(options, place, shapes));
  TESSERA_RETURN_IF_ERROR(SetWide(options, place, shapes));
  return shapes;
}

}  // namespace tessera::train
