#include "zero3/estimate/buffers.h"

#include <algorithm>
#include <vector>

#include "zero3/estimate/timeline/step_timeline.h"
#include "zero3/estimate/live_limit.h"

namespace tessera::zero3 {
namespace {

int64_t RoundsOf(const ZeroConfig& config) {
  return std::min(config.gradient_accumulation_steps, kMostRounds);
}

}  // namespace

int64_t LiveElementLimit(const StateLayout& layout, const ZeroConfig& config) {
  return LiveLimit(
      layout, {.max_elements = config.max_live_parameters,
               .budget_bytes = config.EffectiveDeviceParameterBudget().bytes(),
               .shards_in_tier = config.offload_parameters});
}

absl::StatusOr<ReusePlan> GatherPlan(const StateLayout& layout,
                                     const ZeroConfig& config,
                                     const UseOrder& order) {
  const bool is_whole = layout.ranks() == 1 && !config.offload_parameters;
  if (config.stage < 3 || is_whole) return ReusePlan();
  std::vector<int64_t> sizes;
  for (const Parameter& parameter : layout.model().all()) {
    const bool is_gathered =
        !layout.IsSmall(parameter.id) && parameter.elements > 0;
    sizes.push_back(is_gathered ? layout.GatheredElements(parameter.id) : 0);
  }
  UseOrder step;
  for (int64_t round = 0; round < RoundsOf(config); ++round) {
    for (size_t w = 0; w < order.windows(); ++w) step.Use(order.window(w));
  }
  return PlanReuse(step, sizes,
                   {.max_live = LiveElementLimit(layout, config),
                    .max_reuse_distance = config.max_reuse_distance});
}

BuffersPeak BuffersOf(const StateLayout& layout, const ZeroConfig& config,
                      const BufferRequest& request, const ReusePlan& gathers,
                      std::span<const StateBlock> blocks) {
  const int64_t rounds = RoundsOf(config);
  StepTimeline step(layout, config,
                    {.rank = request.rank,
                     .world = request.world,
                     .moments = request.moments,
                     .holds_gradients = request.holds_gradients,
                     .order = request.order,
                     .rounds = rounds,
                     .max_live = LiveElementLimit(layout, config)},
                    gathers, blocks);
  step.Run();
  return {step.meter().peak(), step.meter().peak_values()};
}

}  // namespace tessera::zero3
