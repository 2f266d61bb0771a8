#include "tools/train/predict/rank_place.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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
  RunPlan plan;
  plan.options_ = options;
  TESSERA_ASSIGN_OR_RETURN(RunStages stages, StagesOfRun(options));
  plan.stages_ = std::make_shared<const RunStages>(std::move(stages));
  return plan;
}

RunPlan RunPlan::With(const RunOptions& options) const {
  RunPlan plan = *this;
  plan.options_ = options;
  return plan;
}

// Window 0 is the embedding, then come the layers and the head.
StageSpan RunPlan::SpanOf(int32_t stage) const {
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

std::vector<StageSpan> RunPlan::StagesOf(int64_t pipeline_rank) const {
  std::vector<StageSpan> spans;
  for (const int32_t stage :
       schedule().map.StagesOf(static_cast<int32_t>(pipeline_rank))) {
    spans.push_back(SpanOf(stage));
  }
  return spans;
}

}  // namespace tessera::train
