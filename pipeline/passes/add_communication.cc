#include "pipeline/passes/add_communication.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {

namespace {

constexpr int64_t DurationOf(ActionKind kind) {
  if (!Computes(kind)) return 0;
  return kind == ActionKind::kBackward ? 2 : 1;
}

// One timed execution of a valid schedule without communication, which writes
// each rank's list as it proceeds.
class Lowering {
 public:
  explicit Lowering(const Schedule& schedule)
      : schedule_(schedule), ranks_(schedule.ranks.size()) {
    const size_t passes = static_cast<size_t>(schedule.map.stages()) *
                          static_cast<size_t>(schedule.microbatches);
    for (auto& inputs : inputs_) inputs.resize(passes, Input::kMissing);
  }

  std::vector<std::vector<Action>> Run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Start(static_cast<int32_t>(rank), /*now=*/0);
    }
    while (!ends_.empty()) {
      const int64_t now = std::get<0>(ends_.top());
      // Writes everything that ends now before anything that starts now.
      std::vector<int32_t> awake;
      while (!ends_.empty() && std::get<0>(ends_.top()) == now) {
        const int32_t rank = std::get<1>(ends_.top());
        ends_.pop();
        Finish(rank, awake);
      }
      for (const int32_t rank : awake) Start(rank, now);
    }
    std::vector<std::vector<Action>> lists;
    for (RankState& rank : ranks_) lists.push_back(std::move(rank.list));
    return lists;
  }

 private:
  enum class Input : uint8_t {
    kMissing,
    kHeld,  // Sent, but its receive is not written yet.
    kThere,
  };

  struct RankState {
    int32_t at = 0;       // The next position of the schedule's list.
    int32_t running = 0;  // Number of actions from `at` on that run now.
    std::vector<Action> list;
    std::deque<Action> held;  // Receives in order, not yet written.
  };

  size_t IndexOf(int32_t stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) *
               static_cast<size_t>(schedule_.microbatches) +
           static_cast<size_t>(microbatch);
  }
  const std::vector<Action>& ActionsOf(int32_t rank) const {
    return schedule_.ranks[static_cast<size_t>(rank)];
  }
  // The input of a forward, backward or receive from the neighbouring stage.
  Input& InputOf(const Action& action) {
    return inputs_[static_cast<size_t>(DirectionOf(action.kind))]
                  [IndexOf(action.stage, action.microbatch)];
  }

  // Returns true if the input of a forward or backward from the neighbouring
  // stage has arrived.
  bool HasInput(const Action& action) {
    if (action.kind != ActionKind::kForward &&
        !GivesInputGradient(action.kind)) {
      return true;
    }
    const PassDirection direction = DirectionOf(action.kind);
    return SourceOf(schedule_, direction, action.stage) == kNoStage ||
           InputOf(action) != Input::kMissing;
  }

  // Starts the next action of `rank`, if it is idle and its inputs are ready.
  void Start(int32_t rank, int64_t now) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& actions = ActionsOf(rank);
    if (state.running > 0 || static_cast<size_t>(state.at) == actions.size()) {
      return;
    }
    const int32_t size = UnitSize(actions, state.at);
    int64_t duration = 0;
    for (int32_t i = 0; i < size; ++i) {
      const Action& action = actions[static_cast<size_t>(state.at + i)];
      if (!HasInput(action)) return;
      duration += DurationOf(action.kind);
    }
    for (int32_t i = 0; i < size; ++i) {
      WriteReceiveOf(actions[static_cast<size_t>(state.at + i)], state);
    }
    for (int32_t i = 0; i < size; ++i) {
      state.list.push_back(actions[static_cast<size_t>(state.at + i)]);
    }
    state.running = size;
    ends_.emplace(now + duration, rank);
  }

  // Writes the held receives up to the receive of the action's input.
  void WriteReceiveOf(const Action& action, RankState& state) {
    if (action.kind != ActionKind::kForward &&
        !GivesInputGradient(action.kind)) {
      return;
    }
    const Input& input = InputOf(action);
    while (input == Input::kHeld) WriteReceive(state);
  }

  void WriteReceive(RankState& state) {
    const Action& receive = state.held.front();
    InputOf(receive) = Input::kThere;
    state.list.push_back(receive);
    state.held.pop_front();
  }

  // Delivers the results of `rank`, and adds the ranks that can continue to
  // `awake`.
  void Finish(int32_t rank, std::vector<int32_t>& awake) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    for (; state.running > 0; --state.running, ++state.at) {
      const Action& action = ActionsOf(rank)[static_cast<size_t>(state.at)];
      if (action.kind == ActionKind::kForward ||
          GivesInputGradient(action.kind)) {
        HandOn(rank, action, awake);
      }
    }
    awake.push_back(rank);
  }

  void HandOn(int32_t rank, const Action& action, std::vector<int32_t>& awake) {
    const PassDirection direction = DirectionOf(action.kind);
    const int32_t target = TargetOf(schedule_, direction, action.stage);
    if (target == kNoStage) return;
    const Action receive{ReceiveOf(direction), target, action.microbatch};
    const int32_t receiver = schedule_.RankOf(target, action.microbatch);
    if (receiver == rank) {
      InputOf(receive) = Input::kThere;
      return;
    }
    RankState& sender = ranks_[static_cast<size_t>(rank)];
    while (!sender.held.empty()) WriteReceive(sender);
    sender.list.push_back({SendOf(direction), action.stage, action.microbatch});
    ranks_[static_cast<size_t>(receiver)].held.push_back(receive);
    InputOf(receive) = Input::kHeld;
    awake.push_back(receiver);
  }

  using End = std::tuple<int64_t, int32_t>;  // Time and rank.

  const Schedule& schedule_;
  std::vector<RankState> ranks_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::array<std::vector<Input>, 2> inputs_;  // By direction.
};

}  // namespace

absl::StatusOr<Schedule> AddCommunication(const Schedule& schedule) {
  TESSERA_RETURN_IF_ERROR(
      Validate(schedule, {.communication = Communication::kImplied}).status());
  Schedule lowered = schedule;
  lowered.ranks = Lowering(schedule).Run();
  return lowered;
}

}  // namespace tessera::pipeline
