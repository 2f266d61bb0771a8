#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {

namespace {

constexpr int64_t kPeriod = 6;
constexpr size_t kPasses = 4;

// The step of a rank's action in each pass.
using Starts = std::array<int64_t, kPasses>;
// The additional steps between a pass and the previous one, beyond the one
// required.
using Delays = std::array<int64_t, kPasses>;

Starts StartsOf(int64_t rank, int64_t ranks, const BuildingBlock& block,
                const Delays& delays) {
  const std::array<int64_t, kPasses> gaps = {
      block.forward_down, block.forward_up, block.backward_down,
      block.backward_up};
  Starts starts;
  int64_t pass_start = 0;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    pass_start += delays[pass];
    const int64_t hops = pass % 2 == 0 ? rank : ranks - 1 - rank;
    starts[pass] = pass_start + gaps[pass] * hops;
    pass_start += gaps[pass] * (ranks - 1) + 1;
  }
  return starts;
}

bool AllDifferent(const Starts& starts) {
  std::array<bool, kPeriod> taken = {};
  for (const int64_t start : starts) {
    bool& step = taken[static_cast<size_t>(start % kPeriod)];
    if (step) return false;
    step = true;
  }
  return true;
}

bool NeverMeet(int64_t ranks, const BuildingBlock& block,
               const Delays& delays) {
  // Ranks that are a period apart meet in the same way.
  for (int64_t rank = 0; rank < std::min(ranks, kPeriod); ++rank) {
    if (!AllDifferent(StartsOf(rank, ranks, block, delays))) return false;
  }
  return true;
}

// Passes 0 and 1 are forward; passes 0 and 3 concern the chunk on the way down.
std::vector<Action> RankActions(int64_t rank, const PipelineShape& shape,
                                const Starts& starts) {
  const int64_t m = shape.microbatches;
  ActionList list(m);
  const std::array<int64_t, kPasses> stages = {
      rank, 2 * shape.ranks - 1 - rank, 2 * shape.ranks - 1 - rank, rank};
  struct Waiting {
    int64_t stage;
    int64_t microbatch;
  };
  std::deque<Waiting> weights;
  int64_t finished = 0;
  for (int64_t step = 0; finished < 2 * m; ++step) {
    bool free = true;
    for (size_t pass = 0; pass < kPasses; ++pass) {
      const int64_t since = step - starts[pass];
      if (since < 0 || since % kPeriod != 0 || since / kPeriod >= m) continue;
      const int64_t microbatch = since / kPeriod;
      const bool forward = pass < 2;
      list.Add(forward ? ActionKind::kForward : ActionKind::kBackwardInput,
               stages[pass], microbatch);
      if (!forward) weights.push_back({stages[pass], microbatch});
      free = false;
    }
    if (!free || weights.empty()) continue;
    const auto [stage, microbatch] = weights.front();
    list.Add(ActionKind::kBackwardWeight, stage, microbatch);
    weights.pop_front();
    ++finished;
  }
  return std::move(list).Take();
}

int64_t PeakOf(const std::vector<Action>& actions) {
  int64_t live = 0;
  int64_t peak = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) peak = std::max(peak, ++live);
    if (action.kind == ActionKind::kBackwardWeight) --live;
  }
  return peak;
}

// The largest number of live activations of any rank, with as many
// micro-batches as it takes to reach it. If the total lifetimes of neighbouring
// ranks are equal, ranks that are a period apart hold the same number.
int64_t PeakOf(int64_t ranks, const BuildingBlock& block,
               const Delays& delays) {
  int64_t peak = 0;
  for (int64_t rank = 0; rank < std::min(ranks, kPeriod); ++rank) {
    const Starts starts = StartsOf(rank, ranks, block, delays);
    const PipelineShape shape = {ranks, 2, starts[kPasses - 1] / kPeriod + 2};
    peak = std::max(peak, PeakOf(RankActions(rank, shape, starts)));
  }
  return peak;
}

// The delays with the lowest peak; among these, the fewest steps.
std::optional<Delays> BestDelays(int64_t ranks, const BuildingBlock& block) {
  std::optional<Delays> best;
  std::array<int64_t, 2> best_cost = {};
  for (int64_t turn = 0; turn < kPeriod; ++turn) {
    for (int64_t back = 0; back < kPeriod; ++back) {
      for (int64_t up = 0; up < kPeriod; ++up) {
        const Delays delays = {0, turn, back, up};
        if (!NeverMeet(ranks, block, delays)) continue;
        const std::array<int64_t, 2> cost = {PeakOf(ranks, block, delays),
                                             turn + back + up};
        if (best && best_cost <= cost) continue;
        best = delays;
        best_cost = cost;
      }
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Schedule> RepeatBlock(std::string_view name,
                                     const BuildingBlock& block,
                                     const PipelineShape& shape) {
  TESSERA_RETURN_IF_ERROR(CheckShape({.name = name, .chunks = 2}, shape));
  const std::optional<Delays> delays = BestDelays(shape.ranks, block);
  if (!delays) {
    return absl::UnimplementedError(
        absl::StrCat(name, " for ", shape.ranks,
                     " ranks: the passes of its building block always collide "
                     "on some rank"));
  }
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(name, StageMap::Zigzag(shape.ranks, 2),
                                         shape.microbatches));
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    const Starts starts = StartsOf(rank, shape.ranks, block, *delays);
    schedule.ranks.push_back(RankActions(rank, shape, starts));
  }
  return schedule;
}

absl::StatusOr<Schedule> GenerateVHalf(const PipelineShape& shape) {
  constexpr BuildingBlock kBlock = {
      .forward_down = 2, .forward_up = 1, .backward_down = 2, .backward_up = 1};
  return RepeatBlock("v_half", kBlock, shape);
}

absl::StatusOr<Schedule> GenerateVMin(const PipelineShape& shape) {
  return RepeatBlock("v_min", BuildingBlock{}, shape);
}

}  // namespace tessera::pipeline
