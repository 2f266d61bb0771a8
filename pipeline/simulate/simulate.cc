#include "pipeline/simulate/simulate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

constexpr double kNever = -1;

// When the results of a stage for a micro-batch are there.
struct Results {
  double forward = kNever;
  double input_gradient = kNever;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        results_(
            static_cast<size_t>(schedule.map.stages() * schedule.microbatches)),
        next_(schedule.ranks.size()),
        held_(schedule.ranks.size()) {
    timeline_.ranks.resize(schedule.ranks.size());
  }

  absl::StatusOr<Timeline> Run() {
    TESSERA_RETURN_IF_ERROR(CheckActions());
    // A rank goes on until it waits; whatever it finishes may wake another.
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) {
        while (Step(rank)) moved = true;
      }
    }
    TESSERA_RETURN_IF_ERROR(CheckComplete());
    Finish();
    return std::move(timeline_);
  }

 private:
  // What the action needs, and where it is not there yet what that is.
  struct Need {
    double ready = 0;
    std::optional<Action> missing;
  };

  Results& Of(int32_t stage, int32_t microbatch) {
    return results_[static_cast<size_t>(stage) *
                        static_cast<size_t>(schedule_.microbatches) +
                    static_cast<size_t>(microbatch)];
  }
  const StageCosts& CostsOf(int32_t stage) const {
    return costs_.stages[static_cast<size_t>(stage)];
  }

  absl::Status CheckActions() const {
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      for (size_t at = 0; at < actions.size(); ++at) {
        const Action& action = actions[at];
        const bool known = action.stage >= 0 &&
                           action.stage < schedule_.map.stages() &&
                           (!HasMicroBatch(action.kind) ||
                            (action.microbatch >= 0 &&
                             action.microbatch < schedule_.microbatches));
        if (known) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank, ", action ", at, " (", action.ToString(),
            "): there are ", schedule_.map.stages(), " stages and ",
            schedule_.microbatches, " micro-batches"));
      }
    }
    return absl::OkStatus();
  }

  // When a result of stage `from` is at the rank of stage `to`.
  double Arrival(double end, int32_t from, int32_t to,
                 int32_t microbatch) const {
    const bool travels =
        schedule_.RankOf(from, microbatch) != schedule_.RankOf(to, microbatch);
    return travels ? end + CostsOf(from).communication : end;
  }

  Need NeedOf(const Action& action) {
    const int32_t stage = action.stage;
    const int32_t microbatch = action.microbatch;
    const auto last = static_cast<int32_t>(schedule_.map.stages()) - 1;
    const Results& own = Of(stage, microbatch);
    Need need;
    const auto wait = [&](double result, ActionKind kind, int32_t from) {
      if (result == kNever) {
        if (!need.missing) need.missing = Action{kind, from, microbatch};
        return;
      }
      need.ready =
          std::max(need.ready, Arrival(result, from, stage, microbatch));
    };
    if (action.kind == ActionKind::kForward) {
      if (stage > 0) {
        wait(Of(stage - 1, microbatch).forward, ActionKind::kForward,
             stage - 1);
      }
    } else if (action.kind == ActionKind::kBackwardWeight) {
      wait(own.input_gradient, ActionKind::kBackwardInput, stage);
    } else {
      wait(own.forward, ActionKind::kForward, stage);
      if (stage < last) {
        wait(Of(stage + 1, microbatch).input_gradient, ActionKind::kBackward,
             stage + 1);
      }
    }
    return need;
  }

  // Does the rank's next action if nothing is missing.
  bool Step(size_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    if (next_[rank] == actions.size()) return false;
    const Action& action = actions[next_[rank]];
    if (Computes(action.kind)) {
      const Need need = NeedOf(action);
      if (need.missing) return false;
      Compute(rank, action, need.ready);
    }
    ++next_[rank];
    return true;
  }

  void Compute(size_t rank, const Action& action, double ready) {
    RankTimeline& line = timeline_.ranks[rank];
    const StageCosts& costs = CostsOf(action.stage);
    const double time = costs.TimeOf(action.kind);
    const double begin = std::max(ready, line.last());
    line.computations.push_back({action, begin, begin + time});
    line.busy += time;
    Results& results = Of(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) results.forward = begin + time;
    if (GivesInputGradient(action.kind)) results.input_gradient = begin + time;
    Hold(rank, action, costs.BytesOf(action.kind));
  }

  void Hold(size_t rank, const Action& action, int64_t bytes) {
    RankTimeline& line = timeline_.ranks[rank];
    Held& held = held_[rank];
    if (action.kind == ActionKind::kForward) ++held.activations;
    // What is given back is there until the end.
    line.peak_bytes =
        std::max(line.peak_bytes, held.bytes + std::max<int64_t>(bytes, 0));
    line.peak_activations = std::max(line.peak_activations, held.activations);
    held.bytes += bytes;
    if (GivesWeightGradient(action.kind)) --held.activations;
  }

  absl::Status CheckComplete() {
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      const std::vector<Action>& actions = schedule_.ranks[rank];
      const size_t at = next_[rank];
      if (at == actions.size()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, ", action ", at, " (", actions[at].ToString(),
          ") waits for ever for ", NeedOf(actions[at]).missing->ToString()));
    }
    return absl::OkStatus();
  }

  void Finish() {
    for (const RankTimeline& line : timeline_.ranks) {
      timeline_.makespan = std::max(timeline_.makespan, line.last());
      timeline_.longest_stage =
          std::max(timeline_.longest_stage, line.last() - line.first());
    }
  }

  struct Held {
    int64_t bytes = 0;
    int64_t activations = 0;
  };

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<Results> results_;
  std::vector<size_t> next_;
  std::vector<Held> held_;
  Timeline timeline_;
};

}  // namespace

absl::StatusOr<Timeline> Simulate(const Schedule& schedule,
                                  const Costs& costs) {
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, schedule.map.stages()));
  return Simulation(schedule, costs).Run();
}

}  // namespace tessera::pipeline
