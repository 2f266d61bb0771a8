#include "tools/train/predict/rank_place.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/generate.h"
#include "tools/text/batches/batch_partition.h"

namespace tessera::train {

RankPlace RankPlace::Of(int64_t rank, const MeshSizes& mesh) {
  RankPlace place;
  place.tp = rank % mesh.tp;
  place.cp = rank / mesh.tp % mesh.cp;
  place.dp = rank / (mesh.tp * mesh.cp) % mesh.dp;
  place.pp = rank / (mesh.tp * mesh.cp * mesh.dp);
  return place;
}

std::string RankPlace::ToString() const {
  return absl::StrCat("dp ", dp, ", pp ", pp, ", cp ", cp, ", tp ", tp);
}

absl::StatusOr<RunPlan> RunPlan::Create(const RunOptions& options) {
  TESSERA_RETURN_IF_ERROR(options.model.Validate());
  TESSERA_ASSIGN_OR_RETURN(
      const text::BatchPartition batch,
      text::BatchPartition::Create(options.batch, options.mesh.dp,
                                   options.micro_batch));
  TESSERA_ASSIGN_OR_RETURN(
      pipeline::Schedule schedule,
      pipeline::Generate(options.schedule,
                         {.ranks = options.mesh.pp,
                          .chunks = options.chunks,
                          .microbatches = batch.micro_batches()}));
  RunPlan plan;
  plan.schedule_ =
      std::make_shared<const pipeline::Schedule>(std::move(schedule));
  return plan.With(options);
}

absl::StatusOr<RunPlan> RunPlan::With(const RunOptions& options) const {
  RunPlan plan = *this;
  plan.options_ = options;
  TESSERA_ASSIGN_OR_RETURN(
      plan.layers_, tensor_parallel::Partition::Balanced(options.model.layers,
                                                         plan.stages()));
  return plan;
}

StageSpan RunPlan::SpanOf(int32_t stage) const {
  return {.stage = stage,
          .layers = layers_.RangeOf(stage),
          .is_first = stage == 0,
          .is_last = stage + 1 == stages()};
}

std::vector<StageSpan> RunPlan::StagesOf(int64_t pipeline_rank) const {
  std::vector<StageSpan> spans;
  for (const int32_t stage :
       schedule().map.StagesOf(static_cast<int32_t>(pipeline_rank))) {
    spans.push_back(SpanOf(stage));
  }
  return spans;
}

}  // namespace tessera::train
