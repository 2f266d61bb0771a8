#include "tools/train/predict/stage_work.h"

#include "base/status_macros.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;

// Queries times the keys that each sees, of a micro-batch.
double CausalPairs(const RunOptions& options) {
  const auto length = static_cast<double>(options.length);
  return static_cast<double>(options.micro_batch) * length * (length + 1) / 2 /
         static_cast<double>(options.mesh.cp);
}

}  // namespace

StageWork StageWorkOf(const StageShapes& shapes, const RunOptions& options) {
  const double tokens = static_cast<double>(options.micro_batch) *
                        static_cast<double>(options.length) /
                        static_cast<double>(options.mesh.cp);
  const auto layers = static_cast<double>(shapes.layers);
  const int64_t weights =
      shapes.hidden *
      (shapes.qkv + shapes.query + shapes.gate_up + shapes.intermediate);
  const double products = layers * 2 * tokens * static_cast<double>(weights);
  const double attention =
      layers * 4 * CausalPairs(options) * static_cast<double>(shapes.query);
  const double head =
      shapes.is_last ? 2 * tokens * static_cast<double>(shapes.vocabulary) *
                           static_cast<double>(shapes.hidden)
                     : 0;
  StageWork work;
  work.forward = products + attention + head;
  work.attention = attention;
  if (shapes.recompute == Recompute::kSelective) work.recomputed = attention;
  if (shapes.recompute == Recompute::kFull) {
    // All but the last product of a layer.
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

absl::StatusOr<double> PredictBubble(const RunPlan& plan) {
  pipeline::Costs costs;
  for (int32_t stage = 0; stage < plan.stages(); ++stage) {
    TESSERA_ASSIGN_OR_RETURN(
        const StageShapes shapes,
        StageShapes::Of(plan.options(), {}, plan.SpanOf(stage)));
    const StageWork work = StageWorkOf(shapes, plan.options());
    costs.stages.push_back({.forward = work.forward,
                            .backward_input = work.backward_input,
                            .backward_weight = work.backward_weight});
  }
  TESSERA_ASSIGN_OR_RETURN(
      const pipeline::Timeline timeline,
      pipeline::Simulate(plan.schedule(), costs, {.traces = false}));
  if (timeline.makespan <= 0) return 0.0;
  double idle = 0;
  for (const pipeline::RankTimeline& rank : timeline.ranks) {
    idle += 1 - rank.busy / timeline.makespan;
  }
  return idle / static_cast<double>(timeline.ranks.size());
}

}  // namespace tessera::train
