// The messages of a simulation: results of computations (Results), rendezvous
// of two ranks (Meetings), the links between stages (Hops, Wire), and the error
// for a schedule that cannot complete.
#ifndef TESSERA_PIPELINE_SIMULATE_TRANSFERS_H_
#define TESSERA_PIPELINE_SIMULATE_TRANSFERS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

inline constexpr double kNever = -1;

// The times at which the results of computations are available.
class Results {
 public:
  explicit Results(const Schedule& schedule)
      : microbatches_(static_cast<size_t>(schedule.microbatches)),
        cells_(static_cast<size_t>(schedule.map.stages()) * microbatches_) {
    // Stages at the pipeline's ends have no neighbour to wait for.
    for (size_t mb = 0; mb < microbatches_; ++mb) {
      cells_[mb].input = 0;
      cells_[cells_.size() - 1 - mb].output_gradient = 0;
    }
  }

  // When all inputs of a computation are available; kNever while one is
  // missing.
  double ReadyFor(const Action& action) const {
    const Cell& cell = At(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) return cell.input;
    if (action.kind == ActionKind::kBackwardWeight) return cell.input_gradient;
    if (cell.forward == kNever || cell.output_gradient == kNever) return kNever;
    return std::max(cell.forward, cell.output_gradient);
  }

  // Records the end of a computation.
  void Done(const Action& action, double end) {
    Cell& cell = At(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) cell.forward = end;
    if (GivesInputGradient(action.kind)) cell.input_gradient = end;
  }

  // The time at which a stage can send its result in the direction; kNever
  // before it is computed.
  double Sendable(PassDirection direction, int32_t stage,
                  int32_t microbatch) const {
    const Cell& cell = At(stage, microbatch);
    return direction == PassDirection::kForward ? cell.forward
                                                : cell.input_gradient;
  }

  // Records the arrival of a stage's input or gradient from its neighbour.
  void Arrived(PassDirection direction, int32_t stage, int32_t microbatch,
               double time) {
    Cell& cell = At(stage, microbatch);
    (direction == PassDirection::kForward ? cell.input : cell.output_gradient) =
        time;
  }

 private:
  struct Cell {
    double input = kNever;
    double forward = kNever;
    double output_gradient = kNever;
    double input_gradient = kNever;
  };

  size_t Index(int32_t stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ +
           static_cast<size_t>(microbatch);
  }
  Cell& At(int32_t stage, int32_t microbatch) {
    return cells_[Index(stage, microbatch)];
  }
  const Cell& At(int32_t stage, int32_t microbatch) const {
    return cells_[Index(stage, microbatch)];
  }

  size_t microbatches_;
  std::vector<Cell> cells_;
};

// Rendezvous: sends and receives that wait for each other.
class Meetings {
 public:
  explicit Meetings(const Schedule& schedule)
      : microbatches_(static_cast<size_t>(schedule.microbatches)),
        posts_(static_cast<size_t>(schedule.map.stages()) * microbatches_ * 2) {
  }

  // Records that the sender or the receiver has reached the message of `send`
  // at `time`. Returns the time at which both have reached it, and resets it;
  // nullopt while one is missing.
  std::optional<double> Meet(const Action& send, bool sends, double time) {
    Posts& posts = posts_[Index(send)];
    (sends ? posts.send : posts.receive) = time;
    if (posts.send == kNever || posts.receive == kNever) return std::nullopt;
    const double both = std::max(posts.send, posts.receive);
    posts = Posts();
    return both;
  }

  // Returns true if that end of the message is waiting for the other.
  bool Waits(const Action& send, bool sends) const {
    const Posts& posts = posts_[Index(send)];
    return (sends ? posts.send : posts.receive) != kNever;
  }

 private:
  struct Posts {
    double send = kNever;
    double receive = kNever;
  };

  size_t Index(const Action& send) const {
    const size_t row = static_cast<size_t>(send.stage) * 2 +
                       (send.kind == ActionKind::kSendBackward ? 1 : 0);
    return row * microbatches_ + static_cast<size_t>(send.microbatch);
  }

  size_t microbatches_;
  std::vector<Posts> posts_;
};

inline constexpr int32_t kNoLink = -1;

// The link from a stage to its neighbour in one direction.
struct Hop {
  int32_t target = kNoStage;  // The stage, kNoStage at the pipeline's end.
  int32_t sender = 0;         // Ranks.
  int32_t receiver = 0;
  int32_t link = kNoLink;  // Where messages queue; kNoLink if they do not.
  double wire = 0;         // How long a message occupies the link.
  double total = 0;        // How long a message takes to arrive.

  bool travels() const { return target != kNoStage && sender != receiver; }
};

// The hops of all stages, looked up once for all messages.
//
//   const Hop& hop = hops.Of(PassDirection::kForward, stage, microbatch);
//   if (hop.travels()) wire.Carry(hop, ready);
class Hops {
 public:
  // Both arguments must have passed CheckInputs; `schedule` must outlive this.
  Hops(const Schedule& schedule, const Costs& costs);

  // The hop from `stage` for the micro-batch.
  const Hop& Of(PassDirection direction, int32_t stage,
                int32_t microbatch) const {
    const bool back = !schedule_.EntersAtFront(microbatch);
    return hops_[Index(direction, stage, back)];
  }

  size_t links() const { return links_; }
  // True if any message takes time.
  bool take_time() const { return take_time_; }

 private:
  static size_t Index(PassDirection direction, int32_t stage, bool back) {
    return static_cast<size_t>(stage) * 4 +
           (direction == PassDirection::kBackward ? 2 : 0) + (back ? 1 : 0);
  }

  const Schedule& schedule_;
  std::vector<Hop> hops_;
  size_t links_ = 0;
  bool take_time_ = false;
};

// The occupation of the links over time.
class Wire {
 public:
  explicit Wire(const Hops& hops) : free_at_(hops.links()) {}

  // Returns when the message is transferred, and reserves its link. A link
  // transfers messages in the order of the calls.
  TimeSpan Carry(const Hop& hop, double ready) {
    if (hop.link == kNoLink) return {ready, ready + hop.total};
    double& free_at = free_at_[static_cast<size_t>(hop.link)];
    const double begin = std::max(ready, free_at);
    free_at = begin + hop.wire;
    return {begin, begin + hop.total};
  }

 private:
  std::vector<double> free_at_;
};

// How ranks wait for messages.
enum class Messages : uint8_t {
  kImplied,     // The schedule has no sends and receives.
  kBeside,      // A computation waits until its message has been sent.
  kRendezvous,  // Sends and receives wait for each other.
};

// FailedPrecondition: "rank 0, action 1 (0B0) waits forever for 1B0".
absl::Status WaitsForEver(const Schedule& schedule, ActionPosition place,
                          const Results& results, Messages messages);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_TRANSFERS_H_
