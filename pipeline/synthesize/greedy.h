// The greedy scheduler of a search (Greedy) and its policies (Policy).
#ifndef TESSERA_PIPELINE_SYNTHESIZE_GREEDY_H_
#define TESSERA_PIPELINE_SYNTHESIZE_GREEDY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

struct RankPolicy {
  // The maximum number of micro-batches of a direction between their first
  // forward and their last backward-input.
  int32_t in_flight = std::numeric_limits<int32_t>::max();
  // The maximum number of micro-batches that wait for their backward-weight
  // while forwards remain.
  int32_t lag = std::numeric_limits<int32_t>::max();
  // A backward-weight may fill a gap of at least this fraction of its time.
  float gap = 1;
  // No forward begins if a gradient (the first one, or a later one) arrives
  // within this fraction of the forward's time.
  float first_patience = 0;
  float patience = 0;
  // While fewer forwards than this lack their backward-input, a forward takes
  // precedence over a backward-input; if a forward has arrived but lacks
  // memory, a backward-weight frees memory.
  int32_t eager = 0;
  // Among several stages, prefers the last one's forward and the first one's
  // backward-input.
  bool late_forward_first = true;
  bool early_input_first = false;
};

struct Policy {
  explicit Policy(const Model& model) : ranks(model.ranks()) {}

  std::vector<RankPolicy> ranks;
  // If set, forwards and backward-inputs follow this order, and only
  // backward-weights are placed anew, by lag and gap.
  std::shared_ptr<const Order> script;
};

// Creates an order by simulating the pipeline and choosing a rank's next
// action whenever the rank is free.
//
//   Greedy greedy(model);
//   Policy policy(model);
//   policy.ranks[0].in_flight = 8;
//   std::optional<Order> order = greedy.Run(policy);
//
// It knows all actions that have begun, hence some future arrivals. It cannot
// run out of memory: a rank admits a forward only if afterwards the
// micro-batches that it has begun, and the oldest one of the other direction if
// there is one, can be finished one after another, oldest first, each doing all
// of its forwards in the remaining memory and then freeing everything it holds
// (the banker's algorithm). So the oldest micro-batch can always continue.
//
// The decisions follow arXiv 2401.10241, section 3.1: forwards first, then
// alternating forwards and backward-inputs as memory allows, and
// backward-weights in gaps or when memory is needed; the policy sets each
// rank's thresholds.
class Greedy {
 public:
  // The model must outlive it.
  explicit Greedy(const Model& model);

  // Returns nullopt if a rank lacks the memory for a required action.
  std::optional<Order> Run(const Policy& policy);

 private:
  struct LaneState {
    std::array<int32_t, 3> done{};
    // The number of inputs that have arrived or will arrive from actions that
    // have begun on other ranks.
    int32_t forwards_known = 0;
    int32_t inputs_known = 0;
  };
  struct RankState {
    double free = 0;
    int64_t held = 0;
    int32_t in_flight = 0;
    int32_t pending = 0;     // Backward-weights.
    bool warming_up = true;  // No gradient has arrived yet.
    int32_t forwards_left = 0;
    size_t scripted = 0;  // Index in the script.
  };
  using Event = std::pair<double, int32_t>;  // When a rank may continue.

  void Reset();
  void Decide(int32_t rank, double now);
  int32_t Choose(int32_t rank, double now, Pass& pass);
  int32_t ChooseScripted(int32_t rank, double now, Pass& pass);
  int32_t Fill(int32_t rank, int32_t forward, double now, Pass& pass);
  int32_t ReadyInput(int32_t rank, double now);
  int32_t ReadyForward(int32_t rank, double now, bool& blocked);
  int32_t PendingWeight(int32_t rank) const;
  double NextArrival(int32_t rank, double now, bool inputs_only) const;
  double ForwardArrival(int32_t lane) const;
  double InputArrival(int32_t lane) const;
  bool Admits(int32_t rank, int32_t lane) const;
  bool Full(int32_t lane, const RankPolicy& policy) const;
  bool CanFinish(const std::vector<int32_t>& lanes, int32_t admitted,
                 int64_t held) const;
  void Do(int32_t rank, int32_t lane, Pass pass, double now);
  void Arrive(int32_t lane, Pass pass, double time);

  const Model& model_;
  double tolerance_;  // Times closer than this are equal.
  size_t turns_;
  std::vector<bool> enters_;      // A lane: the rank's first of the direction.
  std::vector<double> arrivals_;  // By lane, F or I, and turn.
  std::vector<LaneState> lanes_;
  std::vector<RankState> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  const Policy* policy_ = nullptr;
  Order order_;
};

// The initial policies of a search, most promising first. All ranks have the
// same goals.
//
//   for (const Policy& policy : FirstPolicies(model)) greedy.Run(policy);
//   greedy.Run(Vary(model, best, random));
std::vector<Policy> FirstPolicies(const Model& model);

// Returns a copy of `policy` with one random change, on one, some or all ranks.
Policy Vary(const Model& model, const Policy& policy, std::mt19937_64& random);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_GREEDY_H_
