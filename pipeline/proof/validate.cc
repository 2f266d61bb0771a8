#include "pipeline/proof/validate.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/proof/messages.h"

namespace tessera::pipeline {

namespace {

constexpr int32_t kNever = -1;

struct StageState {
  bool gathers = false;  // Ever, in this list.
  bool gathered = false;
  bool has_gradient = false;  // Ever.
  bool unreduced = false;     // Has gradients that were not reduced.
  int32_t last_change = kNever;
  int32_t reduced = kNever;
};

class RankParameters {
 public:
  RankParameters(const Schedule& schedule, int32_t rank,
                 const ParameterSizes& sizes)
      : schedule_(schedule), rank_(rank), sizes_(sizes) {
    for (const Action& action : List()) {
      if (action.kind == ActionKind::kUnshard ||
          action.kind == ActionKind::kReshard) {
        states_[action.stage].gathers = true;
      }
    }
  }

  absl::Status Check() {
    const auto actions = static_cast<int32_t>(List().size());
    for (int32_t position = 0; position < actions; ++position) {
      TESSERA_RETURN_IF_ERROR(Do(position));
    }
    for (const auto& [stage, state] : states_) {
      if (!state.gathered) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          At(state.last_change), " is followed by no ", stage, "RESHARD"));
    }
    return absl::OkStatus();
  }

  // After the last weight gradient.
  bool Reduces(int32_t stage) const {
    const auto state = states_.find(stage);
    return state != states_.end() && state->second.reduced != kNever &&
           !state->second.unreduced;
  }
  // Describes the last reduction of a stage that is reduced too early;
  // otherwise empty.
  std::string TooEarly(int32_t stage) const {
    const auto state = states_.find(stage);
    if (state == states_.end() || state->second.reduced == kNever) return "";
    return At(state->second.reduced);
  }

  int64_t peak() const { return peak_; }
  int64_t peak_unsharded_bytes() const { return peak_unsharded_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  const std::vector<Action>& List() const {
    return schedule_.ranks[static_cast<size_t>(rank_)];
  }
  std::string At(int32_t position) const {
    return Describe(schedule_, {rank_, position});
  }
  static int64_t SizeOf(const std::vector<int64_t>& sizes, int32_t stage) {
    return sizes.empty() ? 0 : sizes[static_cast<size_t>(stage)];
  }

  absl::Status Do(int32_t position) {
    const Action& action = List()[static_cast<size_t>(position)];
    if (Communicates(action.kind)) return absl::OkStatus();
    StageState& state = states_[action.stage];
    if (Computes(action.kind)) return Compute(action, position, state);
    if (action.kind == ActionKind::kReduceGradient) {
      return Reduce(action, position, state);
    }
    return Change(action.kind == ActionKind::kUnshard, position, state);
  }

  absl::Status Compute(const Action& action, int32_t position,
                       StageState& state) {
    if (state.gathers && !state.gathered && NeedsParameters(action.kind)) {
      return absl::InvalidArgumentError(absl::StrCat(
          At(position), " waits for the stage's parameters, which ",
          state.last_change == kNever
              ? "no action before it gathers"
              : absl::StrCat(At(state.last_change), " has released")));
    }
    if (!GivesWeightGradient(action.kind)) return absl::OkStatus();
    if (state.unreduced) return absl::OkStatus();
    if (state.reduced != kNever && !state.has_gradient) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(state.reduced), " reduces nothing: the first weight ",
                       "gradient is ", At(position)));
    }
    state.has_gradient = true;
    state.unreduced = true;
    gradient_bytes_ += SizeOf(sizes_.unreduced_bytes, action.stage);
    return Measure(position);
  }

  absl::Status Reduce(const Action& action, int32_t position,
                      StageState& state) {
    if (!state.unreduced && state.reduced != kNever) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(position), " reduces nothing: there was no weight ",
                       "gradient since ", At(state.reduced)));
    }
    // The previous reduction has ended.
    gradient_bytes_ -= in_flight_bytes_;
    in_flight_bytes_ =
        state.unreduced ? SizeOf(sizes_.unreduced_bytes, action.stage) : 0;
    state.unreduced = false;
    state.reduced = position;
    return absl::OkStatus();
  }

  absl::Status Change(bool gather, int32_t position, StageState& state) {
    if (state.gathered == gather) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(position),
                       gather ? ": the stage is gathered already, by "
                              : ": the stage is not gathered",
                       gather ? At(state.last_change) : ""));
    }
    const int32_t stage = List()[static_cast<size_t>(position)].stage;
    const int64_t bytes = SizeOf(sizes_.unsharded_bytes, stage);
    state.gathered = gather;
    state.last_change = position;
    gathered_ += gather ? 1 : -1;
    unsharded_bytes_ += gather ? bytes : -bytes;
    return gather ? Measure(position) : absl::OkStatus();
  }

  // Updates the peaks and checks the limit after an increase.
  absl::Status Measure(int32_t position) {
    peak_ = std::max(peak_, gathered_);
    peak_unsharded_bytes_ = std::max(peak_unsharded_bytes_, unsharded_bytes_);
    const int64_t bytes = unsharded_bytes_ + gradient_bytes_;
    peak_bytes_ = std::max(peak_bytes_, bytes);
    if (sizes_.limit == 0 || bytes <= sizes_.limit) return absl::OkStatus();
    std::vector<std::string> held;
    for (const auto& [stage, state] : states_) {
      if (state.gathered) held.push_back(absl::StrCat(stage));
    }
    std::sort(held.begin(), held.end());
    return absl::InvalidArgumentError(
        absl::StrCat(At(position), ": the rank then holds ", bytes, " bytes, ",
                     unsharded_bytes_, " of gathered parameters (stages ",
                     absl::StrJoin(held, ", "), ") and ", gradient_bytes_,
                     " of unreduced gradients; the limit is ", sizes_.limit));
  }

  const Schedule& schedule_;
  const int32_t rank_;
  const ParameterSizes& sizes_;
  absl::flat_hash_map<int32_t, StageState> states_;
  int64_t gathered_ = 0;
  int64_t unsharded_bytes_ = 0;
  int64_t gradient_bytes_ = 0;   // Of unreduced gradients, also in flight.
  int64_t in_flight_bytes_ = 0;  // Of the last reduction.
  int64_t peak_ = 0;
  int64_t peak_unsharded_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

absl::Status CheckSizes(const ParameterSizes& sizes, int64_t stages) {
  for (const auto* list : {&sizes.unsharded_bytes, &sizes.unreduced_bytes}) {
    if (!list->empty() && static_cast<int64_t>(list->size()) != stages) {
      return absl::InvalidArgumentError(
          absl::StrCat("sizes of the parameters of ", list->size(),
                       " stages; the schedule has ", stages));
    }
    for (const int64_t bytes : *list) {
      if (bytes >= 0 && bytes <= (int64_t{1} << 40)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a stage with ", bytes,
                       " bytes of parameters or gradients; 0 to 2^40"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReduced(const Schedule& schedule,
                          const std::vector<RankParameters>& ranks) {
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    for (const int32_t rank :
         {schedule.map.RankOf(stage), schedule.map.RankFromBack(stage)}) {
      const RankParameters& of_rank = ranks[static_cast<size_t>(rank)];
      if (of_rank.Reduces(stage)) continue;
      const std::string early = of_rank.TooEarly(stage);
      if (!early.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            early,
            " is the last reduction of the stage's gradients, and comes "
            "before its last weight gradient"));
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " never executes ", stage,
          "REDUCE_GRAD; either every ",
          "stage's gradients are reduced by the schedule, or none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParameterPeaks> CheckParameters(const Schedule& schedule,
                                               const ParameterSizes& sizes) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(sizes, schedule.map.stages()));
  std::vector<RankParameters> ranks;
  ParameterPeaks peaks;
  bool any_reduced = false;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    ranks.emplace_back(schedule, static_cast<int32_t>(rank), sizes);
    TESSERA_RETURN_IF_ERROR(ranks.back().Check());
    peaks.unsharded.push_back(ranks.back().peak());
    peaks.unsharded_bytes.push_back(ranks.back().peak_unsharded_bytes());
    peaks.bytes.push_back(ranks.back().peak_bytes());
    for (const Action& action : schedule.ranks[rank]) {
      any_reduced |= action.kind == ActionKind::kReduceGradient;
    }
  }
  if (any_reduced) TESSERA_RETURN_IF_ERROR(CheckReduced(schedule, ranks));
  return peaks;
}

namespace {

// The number of live micro-batches, and its maximum.
class Gauge {
 public:
  void Add(bool begins) {
    if (!begins) return;
    peak_ = std::max(peak_, ++alive_);
  }
  void Remove(bool ends) { alive_ -= ends ? 1 : 0; }
  int64_t peak() const { return peak_; }

 private:
  int64_t alive_ = 0;
  int64_t peak_ = 0;
};

void Measure(const std::vector<Action>& actions, Proof& proof) {
  Gauge activations;
  Gauge before_backward;
  for (size_t start = 0; start < actions.size();) {
    const auto size =
        static_cast<size_t>(UnitSize(actions, static_cast<int32_t>(start)));
    for (size_t i = start; i < start + size; ++i) {
      const bool forward = actions[i].kind == ActionKind::kForward;
      activations.Add(forward);
      before_backward.Add(forward);
      proof.computations += Computes(actions[i].kind) ? 1 : 0;
    }
    for (size_t i = start; i < start + size; ++i) {
      activations.Remove(GivesWeightGradient(actions[i].kind));
      before_backward.Remove(GivesInputGradient(actions[i].kind));
    }
    start += size;
  }
  proof.peak_activations.push_back(activations.peak());
  proof.peak_before_backward.push_back(before_backward.peak());
}

}  // namespace

absl::StatusOr<Proof> Validate(const Schedule& schedule,
                               const ValidateOptions& options) {
  if (options.buffers < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.buffers, " buffers for a channel; at least 0 are allowed"));
  }
  const bool lowered = options.communication == Communication::kExplicit;
  TESSERA_ASSIGN_OR_RETURN(const Coverage coverage, Coverage::Of(schedule));
  std::vector<Channel> channels;
  if (lowered) {
    TESSERA_ASSIGN_OR_RETURN(channels, MatchMessages(schedule, coverage));
  } else {
    TESSERA_RETURN_IF_ERROR(CheckNoMessages(schedule));
  }
  TESSERA_RETURN_IF_ERROR(CheckLocalOrder(schedule, coverage, lowered));
  Proof proof;
  TESSERA_ASSIGN_OR_RETURN(ParameterPeaks peaks,
                           CheckParameters(schedule, options.parameters));
  proof.peak_unsharded = std::move(peaks.unsharded);
  proof.peak_unsharded_bytes = std::move(peaks.unsharded_bytes);
  proof.peak_parameter_bytes = std::move(peaks.bytes);
  TESSERA_RETURN_IF_ERROR(
      lowered ? CheckMessagesFlow(schedule, channels, options.buffers)
              : CheckComputationsFlow(schedule, coverage));
  for (const auto& actions : schedule.ranks) Measure(actions, proof);
  proof.messages = CountMessages(schedule);
  return proof;
}

}  // namespace tessera::pipeline
