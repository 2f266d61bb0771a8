// For tests: executes a compute-only schedule by its dependencies, with
// unlimited buffers and free communication, and returns the result. Independent
// of the generators.
//
//   const Execution run = Execute(schedule, {.forward = 1, .backward = 2});
//   EXPECT_EQ(run.error, "");
//   EXPECT_EQ(run.makespan, (m + p - 1) * 3);
#ifndef TESSERA_PIPELINE_GENERATE_TESTING_SCHEDULE_CHECKER_H_
#define TESSERA_PIPELINE_GENERATE_TESTING_SCHEDULE_CHECKER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct UnitTimes {
  int64_t forward = 1;
  int64_t backward = 2;
  int64_t backward_input = 1;
  int64_t backward_weight = 1;
};

struct Execution {
  // "" if every micro-batch passed every stage, forward and backward, exactly
  // once and on its rank; otherwise the first error.
  std::string error;
  int64_t makespan = 0;
  // The longest time from a rank's first action to its last.
  int64_t longest_span = 0;
  // By rank, the largest number of live activations, from F to B or W.
  std::vector<int64_t> peaks;
  int64_t pairs = 0;

  int64_t peak() const { return *std::max_element(peaks.begin(), peaks.end()); }
};

namespace schedule_checker_internal {

class Runner {
 public:
  Runner(const Schedule& schedule, const UnitTimes& times)
      : schedule_(schedule),
        times_(times),
        at_(schedule.ranks.size()),
        free_at_(schedule.ranks.size()),
        first_(schedule.ranks.size(), -1),
        live_(schedule.ranks.size()) {
    const auto cells = static_cast<size_t>(schedule.map.stages()) *
                       static_cast<size_t>(schedule.microbatches);
    for (auto& ends : ends_) ends.resize(cells);
    result_.peaks.resize(schedule.ranks.size());
  }

  Execution Run() {
    if (static_cast<int64_t>(at_.size()) != schedule_.map.ranks()) {
      result_.error = "not as many lists as ranks";
      return result_;
    }
    for (bool progress = true; progress && result_.error.empty();) {
      progress = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (result_.error.empty() && Step(rank)) progress = true;
      }
    }
    if (result_.error.empty()) CheckComplete();
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      result_.makespan = std::max(result_.makespan, free_at_[rank]);
      result_.longest_span =
          std::max(result_.longest_span, free_at_[rank] - first_[rank]);
    }
    return result_;
  }

 private:
  using Time = std::optional<int64_t>;

  // When the pass (0: F, 1: I or B, 2: W or B) of the stage ended.
  Time& End(size_t pass, int64_t stage, int64_t microbatch) {
    return ends_[pass][static_cast<size_t>(stage * schedule_.microbatches +
                                           microbatch)];
  }

  bool Known(size_t rank, const Action& action) {
    return Computes(action.kind) && action.stage >= 0 &&
           action.stage < schedule_.map.stages() && action.microbatch >= 0 &&
           action.microbatch < schedule_.microbatches &&
           schedule_.RankOf(action.stage, action.microbatch) ==
               static_cast<int32_t>(rank);
  }

  // When all inputs of the action are available; nullopt while one is missing.
  Time Ready(const Action& action) {
    const auto [kind, stage, microbatch, with_next] = action;
    if (kind == ActionKind::kForward) {
      return stage == 0 ? Time(0) : End(0, stage - 1, microbatch);
    }
    const Time own =
        End(kind == ActionKind::kBackwardWeight, stage, microbatch);
    if (kind == ActionKind::kBackwardWeight || !own ||
        stage + 1 == schedule_.map.stages()) {
      return own;
    }
    const Time after = End(1, stage + 1, microbatch);
    return after ? Time(std::max(*own, *after)) : after;
  }

  int64_t Duration(ActionKind kind) const {
    switch (kind) {
      case ActionKind::kForward:
        return times_.forward;
      case ActionKind::kBackward:
        return times_.backward;
      case ActionKind::kBackwardInput:
        return times_.backward_input;
      default:
        return times_.backward_weight;
    }
  }

  // Runs the rank's next action, or pair; false if it must wait.
  bool Step(size_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    if (at_[rank] == actions.size()) return false;
    const size_t count = actions[at_[rank]].with_next ? 2 : 1;
    int64_t start = free_at_[rank];
    int64_t duration = 0;
    for (size_t i = at_[rank]; i < at_[rank] + count; ++i) {
      if (i == actions.size() || !Known(rank, actions[i])) {
        return Fail(rank, "is no action of this rank, or half a pair");
      }
      const Time ready = Ready(actions[i]);
      if (!ready) return false;
      start = std::max(start, *ready);
      duration += Duration(actions[i].kind);
    }
    if (first_[rank] < 0) first_[rank] = start;
    free_at_[rank] = start + duration;
    result_.pairs += count == 2;
    for (; count > 0 && at_[rank] < actions.size();) {
      const Action& action = actions[at_[rank]];
      if (!Finish(rank, action)) return false;
      ++at_[rank];
      if (!action.with_next) break;
    }
    return true;
  }

  bool Finish(size_t rank, const Action& action) {
    const auto set = [&](size_t pass) {
      Time& end = End(pass, action.stage, action.microbatch);
      if (end) return Fail(rank, "is there twice");
      end = free_at_[rank];
      return true;
    };
    if (action.kind == ActionKind::kForward) {
      result_.peaks[rank] = std::max(result_.peaks[rank], ++live_[rank]);
      return set(0);
    }
    if (GivesWeightGradient(action.kind)) --live_[rank];
    return (!GivesInputGradient(action.kind) || set(1)) &&
           (!GivesWeightGradient(action.kind) || set(2));
  }

  bool Fail(size_t rank, std::string_view what) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    const size_t at = std::min(at_[rank], actions.size() - 1);
    result_.error = absl::StrCat("rank ", rank, ", position ", at, ": ",
                                 actions[at].ToString(), " ", what);
    return false;
  }

  void CheckComplete() {
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < schedule_.ranks[rank].size()) {
        Fail(rank, "waits forever");
        return;
      }
    }
    for (const auto& ends : ends_) {
      if (std::find(ends.begin(), ends.end(), std::nullopt) != ends.end()) {
        result_.error = "a micro-batch misses a stage";
      }
    }
  }

  const Schedule& schedule_;
  const UnitTimes times_;
  std::vector<size_t> at_;
  std::vector<int64_t> free_at_;
  std::vector<int64_t> first_;
  std::vector<int64_t> live_;
  std::vector<Time> ends_[3];
  Execution result_;
};

}  // namespace schedule_checker_internal

inline Execution Execute(const Schedule& schedule,
                         const UnitTimes& times = UnitTimes()) {
  return schedule_checker_internal::Runner(schedule, times).Run();
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_TESTING_SCHEDULE_CHECKER_H_
