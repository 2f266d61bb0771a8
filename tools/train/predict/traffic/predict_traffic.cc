#include "tools/train/predict/traffic/predict_traffic.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/schedule/action.h"
#include "tools/train/predict/stage_shapes.h"
#include "tools/train/predict/traffic/stage_traffic.h"

namespace tessera::train {
namespace {

using collectives::OpKind;
using pipeline::Action;
using pipeline::ActionKind;

// What stages hand to each other, and what ranks agree on in a step.
void AddPipeline(const RunPlan& plan, const RankPlace& place,
                 int64_t boundary_bytes, RankTraffic& traffic) {
  for (const Action& action :
       plan.lowered().ranks[static_cast<size_t>(place.pp)]) {
    if (!pipeline::Communicates(action.kind)) continue;
    traffic.Add(TrafficAxis::kPp,
                pipeline::Sends(action.kind) ? OpKind::kSend : OpKind::kReceive,
                boundary_bytes);
  }
  traffic.Add(TrafficAxis::kPp, OpKind::kBarrier, 0);
  traffic.Add(TrafficAxis::kPp, OpKind::kAllReduce,
              plan.micro_batches() * static_cast<int64_t>(sizeof(double)));
}

// The table that the first and the last stage both have, on two ranks.
void AddTied(const RunPlan& plan, const RankPlace& place,
             const StageShapes& shapes, int64_t gradient_width,
             RankTraffic& traffic) {
  const auto last = static_cast<int32_t>(plan.stages() - 1);
  if (!plan.options().model.tied_embeddings || last == 0) return;
  const int32_t first_rank = plan.schedule().map.RankOf(0);
  const int32_t last_rank = plan.schedule().map.RankOf(last);
  if (first_rank == last_rank) return;
  if (place.pp != first_rank && place.pp != last_rank) return;
  traffic.Add(TrafficAxis::kPp, OpKind::kAllReduce,
              shapes.vocabulary * shapes.hidden * gradient_width);
}

// ZeRO: gradients to their owners, values to all, and what they agree on.
void AddState(const StatePlan& state, bool is_hybrid, RankTraffic& traffic) {
  const auto add = [&](OpKind kind, int64_t bytes) {
    traffic.Add(TrafficAxis::kDp, kind, bytes);
  };
  const int stage = state.options().stage;
  for (const zero3::ReduceBucket& bucket : state.buckets().all()) {
    add(stage == 0 ? OpKind::kAllReduce : OpKind::kReduceScatter,
        bucket.elements * SizeInBytes(bucket.dtype));
    const auto owner =
        static_cast<size_t>(stage == 0 ? 0 : state.data_rank().value());
    traffic.Add(TrafficAxis::kReplicate, OpKind::kAllReduce,
                bucket.counts[owner] * SizeInBytes(bucket.dtype));
  }
  for (const zero3::Parameter& parameter : state.model().all()) {
    if (stage > 0 && state.IsWhole(parameter) && parameter.elements > 0) {
      add(OpKind::kAllGather, state.GatheredBytes(parameter));
    }
  }
  for (const auto& window : state.gathers().windows) {
    for (const zero3::ParameterId id : window.gather) {
      add(OpKind::kAllGather, state.GatheredBytes(state.model()[id]));
    }
  }
  constexpr int64_t kWord = 8;
  add(OpKind::kAllGather, kWord * state.data_ranks());
  if (stage > 0) add(OpKind::kAllReduce, 2 * kWord);
  // The loss.
  traffic.Add(is_hybrid ? TrafficAxis::kData : TrafficAxis::kDp,
              OpKind::kAllReduce, kWord);
  traffic.Add(TrafficAxis::kModel, OpKind::kAllReduce, 2 * kWord);
}

}  // namespace

absl::StatusOr<RankTraffic> PredictTraffic(const RunPlan& plan,
                                           const RankPlace& place,
                                           const StatePlan& state) {
  RankTraffic traffic(plan.options().mesh);
  const int64_t gradient_width = SizeInBytes(
      SizeInBytes(plan.options().dtype) < 4 ? state.options().gradient_dtype
                                            : plan.options().dtype);
  std::map<std::pair<int32_t, ActionKind>, int64_t> passes;
  for (const Action& action :
       plan.schedule().ranks[static_cast<size_t>(place.pp)]) {
    if (pipeline::Computes(action.kind)) ++passes[{action.stage, action.kind}];
  }
  int64_t boundary_bytes = 0;
  for (const StageSpan& span : plan.StagesOf(place.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
                             StageShapes::Of(plan.options(), place, span));
    boundary_bytes = shapes.row_bytes();
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kBackward,
          ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
      const auto found = passes.find({span.stage, kind});
      if (found == passes.end()) continue;
      AddPasses(shapes, kind, found->second, traffic);
    }
    AddSharedGradients(shapes, gradient_width, traffic);
    if (span.is_first || span.is_last) {
      AddTied(plan, place, shapes, gradient_width, traffic);
    }
  }
  AddPipeline(plan, place, boundary_bytes, traffic);
  AddState(state, plan.options().mesh.dp_replicate > 1, traffic);
  return traffic;
}

}  // namespace tessera::train
