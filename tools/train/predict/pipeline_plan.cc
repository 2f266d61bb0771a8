#include "tools/train/predict/pipeline_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/simulate/simulate.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/chunked_collectives.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

using topology::MeshAxis;

RankPlace RankPlace::Of(int64_t rank, const MeshSizes& mesh) {
  const auto along = [&](MeshAxis axis) {
    return rank / mesh.StrideOf(axis) % mesh.SizeOf(axis);
  };
  return {.dp = along(MeshAxis::kDp),
          .pp = along(MeshAxis::kPp),
          .cp = along(MeshAxis::kCp),
          .tp = along(MeshAxis::kTp)};
}

int64_t RankPlace::RankIn(const MeshSizes& mesh) const {
  return dp * mesh.StrideOf(MeshAxis::kDp) + pp * mesh.StrideOf(MeshAxis::kPp) +
         cp * mesh.StrideOf(MeshAxis::kCp) + tp * mesh.StrideOf(MeshAxis::kTp);
}

absl::StatusOr<PipelinePlan> PipelinePlan::Create(const RunOptions& options) {
  PipelinePlan plan;
  plan.options_ = options;
  TESSERA_ASSIGN_OR_RETURN(RunStages stages, StagesOfRun(options));
  plan.stages_ = std::make_shared<const RunStages>(std::move(stages));
  return plan;
}

PipelinePlan PipelinePlan::With(const RunOptions& options) const {
  PipelinePlan plan = *this;
  plan.options_ = options;
  return plan;
}

// Window 0 is the embedding; the layers and the head follow.
StageSpan PipelinePlan::SpanOf(int32_t stage) const {
  const std::vector<int64_t>& windows = stages_->windows;
  int64_t begin = 0;
  for (int32_t before = 0; before < stage; ++before) {
    begin += windows[static_cast<size_t>(before)];
  }
  const int64_t end = begin + windows[static_cast<size_t>(stage)];
  const int64_t layers = options_.model.layers;
  return {.stage = stage,
          .layers = {std::clamp<int64_t>(begin - 1, 0, layers),
                     std::clamp<int64_t>(end - 1, 0, layers)},
          .is_first = begin == 0,
          .is_last = end == layers + 2};
}

std::vector<StageSpan> PipelinePlan::StagesOf(int64_t pipeline_rank) const {
  std::vector<StageSpan> spans;
  for (const int32_t stage :
       schedule().map.StagesOf(static_cast<int32_t>(pipeline_rank))) {
    spans.push_back(SpanOf(stage));
  }
  return spans;
}

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

absl::Status SetLatentAttention(const RunOptions& options,
                                const RankPlace& place, StageShapes& shapes) {
  const model_files::ModelConfig& model = options.model;
  const model_files::LatentConfig& latent = model.latent;
  const tp::FusedPart part = tp::HeadsPart(model.heads, 1);
  TESSERA_ASSIGN_OR_RETURN(
      const tp::FusedPartition heads,
      tp::FusedPartition::Create({{part}}, options.mesh.tp));
  shapes.heads = shapes.kv_heads = heads.SizeOf(place.tp);
  shapes.head_size = model.head_size;
  shapes.query = shapes.heads * latent.value;
  const int64_t up =
      shapes.heads * (model.QueryInputs() * model.head_size +
                      latent.kv_rank * (latent.nope + latent.value));
  shapes.qkv = model.LatentRows() + up / model.hidden;
  shapes.inputs = {model.QueryInputs(), latent.kv_rank};
  shapes.shared_rope = latent.rope;
  return absl::OkStatus();
}

absl::Status SetAttention(const RunOptions& options, const RankPlace& place,
                          StageShapes& shapes) {
  const model_files::ModelConfig& model = options.model;
  shapes.inputs = {model.hidden};
  if (model.IsLatent()) return SetLatentAttention(options, place, shapes);
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

absl::StatusOr<int64_t> TensorPart(const RunOptions& options,
                                   const RankPlace& place, int64_t units) {
  TESSERA_ASSIGN_OR_RETURN(const tp::Partition parts,
                           tp::Partition::Balanced(units, options.mesh.tp));
  return parts.SizeOf(place.tp);
}

absl::Status SetWide(const RunOptions& options, const RankPlace& place,
                     const StageSpan& span, StageShapes& shapes) {
  const model_files::MixtureConfig& mixture = options.model.mixture;
  TESSERA_ASSIGN_OR_RETURN(
      shapes.dense_units,
      TensorPart(options, place, options.model.intermediate));
  MixtureShapes of_span = {.per_token = mixture.per_token,
                           .experts = mixture.experts,
                           .ranks = options.mesh.ep,
                           .has_shared = mixture.shared_intermediate > 0};
  TESSERA_ASSIGN_OR_RETURN(of_span.units,
                           TensorPart(options, place, mixture.intermediate));
  TESSERA_ASSIGN_OR_RETURN(
      of_span.shared, TensorPart(options, place, mixture.shared_intermediate));
  for (int64_t layer = span.layers.begin; layer < span.layers.end; ++layer) {
    if (options.model.IsMixture(layer)) ++of_span.layers;
  }
  if (of_span.layers > 0) shapes.mixture = of_span;
  // A rank computes a row for each expert of each of its tokens.
  const int64_t units =
      (shapes.layers - of_span.layers) * shapes.dense_units +
      of_span.layers * (of_span.per_token * of_span.units + of_span.shared);
  shapes.intermediate = units / std::max<int64_t>(shapes.layers, 1);
  shapes.gate_up = 2 * shapes.intermediate;
  TESSERA_ASSIGN_OR_RETURN(
      const tp::Partition vocabulary,
      tp::Partition::Balanced(options.model.vocabulary, options.mesh.tp));
  shapes.vocabulary = vocabulary.SizeOf(place.tp);
  return absl::OkStatus();
}

struct NamedSize {
  std::string_view name;
  int64_t size;
  std::string_view advice;
};

absl::Status CheckFp8Sizes(const RunOptions& options, const RankPlace& place) {
  TESSERA_ASSIGN_OR_RETURN(const StageShapes s,
                           StageShapes::Of(options, place, {.layers = {0, 1}}));
  constexpr std::string_view kTokens =
      "another --length or --micro_batch, or fewer context ranks";
  constexpr std::string_view kModel = "another model, or fewer tensor ranks";
  std::vector<NamedSize> sizes = {
      {"tokens of a micro-batch", s.tokens, kTokens},
      {"hidden units", s.hidden, kModel},
      {"columns of the output projection", s.query, kModel}};
  if (const model_files::ModelConfig& model = options.model; model.IsLatent()) {
    const model_files::LatentConfig& latent = model.latent;
    for (const auto& [name, size] :
         {std::pair("elements of the latent vectors", model.LatentRows()),
          std::pair("elements of that of queries", latent.query_rank),
          std::pair("elements of that of keys and values", latent.kv_rank),
          std::pair("rows of query", s.heads * s.head_size),
          std::pair("rows of key and value",
                    s.heads * (latent.nope + latent.value))}) {
      sizes.push_back({name, size, kModel});
    }
  } else {
    sizes.push_back({"rows of query, key and value", s.qkv, kModel});
  }
  // Products of experts are not in fp8.
  if (s.mixture.layers == 0) {
    sizes.push_back({"intermediate units", s.intermediate, kModel});
  }
  if (options.mesh.tp > 1) {
    const int64_t parts = options.sequence_parallel ? options.mesh.tp : 1;
    TESSERA_ASSIGN_OR_RETURN(const tp::Partition tokens,
                             tp::Partition::Balanced(s.tokens, parts));
    const tp::TokenChunks chunks(tokens, options.overlap_chunks);
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
      const int64_t part = options.sequence_parallel ? place.tp : 0;
      sizes.push_back({"tokens that are multiplied at a time",
                       chunks.LocalOf(chunk, part).size(),
                       "another --length or --micro_batch, or other "
                       "--overlap_chunks"});
    }
  }
  for (const NamedSize& size : sizes) {
    if (size.size % 16 == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--dtype=fp8 on a GPU needs sizes that are multiples of 16, and ",
        options.mesh.world_size() > 1 ? "a rank has " : "there are ", size.size,
        " ", size.name, "; give --dtype=bf16, ", size.advice));
  }
  return absl::OkStatus();
}

using tensor_parallel::Recompute;

// The number of (query, visible key) pairs of a micro-batch.
double CausalPairs(const RunOptions& options) {
  return static_cast<double>(options.micro_batch * options.length) *
         options.model.KeysPerQuery(options.length) /
         static_cast<double>(options.mesh.cp);
}

absl::StatusOr<pipeline::Timeline> SimulatePlan(
    const PipelinePlan& plan, const pipeline::SimulateOptions& options) {
  constexpr double kUnit = 1e-9;
  pipeline::Costs costs;
  for (int32_t stage = 0; stage < plan.stages(); ++stage) {
    TESSERA_ASSIGN_OR_RETURN(
        const StageShapes shapes,
        StageShapes::Of(plan.options(), {}, plan.SpanOf(stage)));
    const StageWork work = StageWorkOf(shapes, plan.options());
    costs.stages.push_back({.forward = work.forward * kUnit,
                            .backward_input = work.backward_input * kUnit,
                            .backward_weight = work.backward_weight * kUnit});
  }
  return pipeline::Simulate(plan.schedule(), costs, options);
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
  TESSERA_RETURN_IF_ERROR(SetWide(options, place, span, shapes));
  return shapes;
}

absl::Status CheckFp8Sizes(const RunOptions& options) {
  for (int64_t cp = 0; cp < options.mesh.cp; ++cp) {
    for (int64_t rank = 0; rank < options.mesh.tp; ++rank) {
      TESSERA_RETURN_IF_ERROR(CheckFp8Sizes(options, {.cp = cp, .tp = rank}));
    }
  }
  return absl::OkStatus();
}

StageWork StageWorkOf(const StageShapes& shapes, const RunOptions& options) {
  const double tokens = static_cast<double>(options.micro_batch) *
                        static_cast<double>(options.length) /
                        static_cast<double>(options.mesh.cp);
  const auto layers = static_cast<double>(shapes.layers);
  const int64_t weights =
      shapes.hidden *
      (shapes.qkv + shapes.query + shapes.gate_up + shapes.intermediate);
  const double products = layers * 2 * tokens * static_cast<double>(weights);
  const double attention = layers * 4 * CausalPairs(options) *
                           static_cast<double>(shapes.heads * shapes.head_size);
  const double head =
      shapes.is_last ? 2 * tokens * static_cast<double>(shapes.vocabulary) *
                           static_cast<double>(shapes.hidden)
                     : 0;
  StageWork work;
  work.forward = products + attention + head;
  work.attention = attention;
  if (shapes.recompute == Recompute::kSelective) work.recomputed = attention;
  if (shapes.recompute == Recompute::kFull) {
    // All products of a layer except the last one.
    const double down = layers * 2 * tokens *
                        static_cast<double>(shapes.hidden) *
                        static_cast<double>(shapes.intermediate);
    work.recomputed = work.forward - down;
  }
  work.backward_input = products + 2 * attention + head + work.recomputed;
  work.backward_weight = products + head;
  return work;
}

RunWork RunWorkOf(const RunOptions& options) {
  RunWork work;
  const double tokens =
      static_cast<double>(options.batch) * static_cast<double>(options.length);
  work.model = options.model.TrainingFlopsPerToken(options.length) * tokens;
  RunOptions alone = options;
  alone.mesh = {};
  const auto whole = StageShapes::Of(
      alone, {},
      {.layers = {0, options.model.layers}, .is_first = true, .is_last = true});
  if (!whole.ok()) return work;
  work.recomputed = StageWorkOf(*whole, alone).recomputed *
                    static_cast<double>(options.batch) /
                    static_cast<double>(options.micro_batch);
  return work;
}

absl::StatusOr<pipeline::Timeline> PredictTimeline(const PipelinePlan& plan) {
  TESSERA_ASSIGN_OR_RETURN(pipeline::Timeline timeline, SimulatePlan(plan, {}));
  // The costs have no bytes.
  for (pipeline::RankTimeline& rank : timeline.ranks) {
    rank.memory.clear();
    rank.peak_bytes = 0;
  }
  return timeline;
}

absl::StatusOr<double> PredictBubble(const PipelinePlan& plan) {
  TESSERA_ASSIGN_OR_RETURN(const pipeline::Timeline timeline,
                           SimulatePlan(plan, {.traces = false}));
  if (timeline.makespan <= 0) return 0.0;
  double idle = 0;
  for (const pipeline::RankTimeline& rank : timeline.ranks) {
    idle += 1 - rank.busy / timeline.makespan;
  }
  return idle / static_cast<double>(timeline.ranks.size());
}

}  // namespace tessera::train
