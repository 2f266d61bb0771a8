#include "pipeline/synthesize/greedy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tessera::pipeline::synthesis {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

size_t At(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

Greedy::Greedy(const Model& model)
    : model_(model),
      tolerance_(0),
      turns_(At(model.most_microbatches)),
      enters_(model.lanes.size()),
      arrivals_(model.lanes.size() * 2 * turns_),
      lanes_(model.lanes.size()),
      ranks_(model.ranks()) {
  for (const auto& lanes : model.lanes_of_rank) {
    int32_t direction = -1;
    for (const int32_t l : lanes) {
      enters_[At(l)] = model.lane(l).first_microbatch != direction;
      direction = model.lane(l).first_microbatch;
    }
  }
  for (const Lane& lane : model.lanes) {
    tolerance_ = std::max(tolerance_, lane.work() * lane.count * 1e-12);
  }
}

void Greedy::Reset() {
  std::fill(lanes_.begin(), lanes_.end(), LaneState{});
  std::fill(ranks_.begin(), ranks_.end(), RankState{});
  order_.assign(model_.ranks(), {});
  events_ = {};
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    size_t actions = 0;
    for (const int32_t l : model_.lanes_of_rank[rank]) {
      ranks_[rank].forwards_left += model_.lane(l).count;
      actions += 3 * At(model_.lane(l).count);
      if (model_.lane(l).before == kNoLane) {
        lanes_[At(l)].forwards_known = model_.lane(l).count;
        std::fill_n(
            arrivals_.begin() + static_cast<ptrdiff_t>(At(l) * 2 * turns_),
            model_.lane(l).count, 0.0);
      }
    }
    order_[rank].reserve(actions);
    events_.push({0, static_cast<int32_t>(rank)});
  }
}

std::optional<Order> Greedy::Run(const Policy& policy) {
  policy_ = &policy;
  Reset();
  while (!events_.empty()) {
    const auto [now, rank] = events_.top();
    events_.pop();
    if (ranks_[At(rank)].free <= now + tolerance_) Decide(rank, now);
  }
  int64_t done = 0;
  for (const auto& ops : order_) done += static_cast<int64_t>(ops.size());
  if (done < model_.actions) return std::nullopt;
  return std::move(order_);
}

void Greedy::Decide(int32_t rank, double now) {
  Pass pass = Pass::kForward;
  const int32_t lane = policy_->script != nullptr
                           ? ChooseScripted(rank, now, pass)
                           : Choose(rank, now, pass);
  if (lane != kNoLane) Do(rank, lane, pass, now);
}

// Returns the lane and pass of the next action; kNoLane to wait.
int32_t Greedy::Choose(int32_t rank, double now, Pass& pass) {
  const RankPolicy& policy = policy_->ranks[At(rank)];
  const RankState& state = ranks_[At(rank)];
  const int32_t weight = PendingWeight(rank);
  const int32_t input = ReadyInput(rank, now);
  const bool room_for_input =
      input != kNoLane &&
      model_.Fits(state.held +
                  std::max<int64_t>(model_.lane(input).input_bytes, 0));
  const bool eager = state.in_flight < policy.eager;
  pass = Pass::kInput;
  if (room_for_input && !eager) return input;
  pass = Pass::kWeight;
  if (input != kNoLane && !room_for_input) return weight;
  if (weight != kNoLane && state.pending > policy.lag &&
      state.forwards_left > 0) {
    return weight;
  }
  bool blocked = false;
  const int32_t forward = ReadyForward(rank, now, blocked);
  if (input == kNoLane && !(eager && forward != kNoLane && !state.warming_up)) {
    if (forward == kNoLane && blocked && eager && weight != kNoLane) {
      return weight;
    }
    return Fill(rank, forward, now, pass);
  }
  if (forward == kNoLane && blocked && weight != kNoLane) return weight;
  pass = forward != kNoLane ? Pass::kForward : Pass::kInput;
  return forward != kNoLane ? forward : input;
}

// Chooses without a ready backward-input: the forward, unless a gradient is
// about to arrive, or a backward-weight if there is time for it.
int32_t Greedy::Fill(int32_t rank, int32_t forward, double now, Pass& pass) {
  const RankPolicy& policy = policy_->ranks[At(rank)];
  const double wait = NextArrival(rank, now, forward != kNoLane) - now;
  const float patience =
      ranks_[At(rank)].warming_up ? policy.first_patience : policy.patience;
  if (forward != kNoLane &&
      wait >= double{patience} * model_.lane(forward).forward - tolerance_) {
    pass = Pass::kForward;
    return forward;
  }
  const int32_t weight = PendingWeight(rank);
  if (weight == kNoLane) return kNoLane;
  const double time = model_.lane(weight).weight * double{policy.gap};
  return wait >= time - tolerance_ ? weight : kNoLane;
}

int32_t Greedy::ChooseScripted(int32_t rank, double now, Pass& pass) {
  RankState& state = ranks_[At(rank)];
  const std::vector<Op>& script = (*policy_->script)[At(rank)];
  while (state.scripted < script.size() &&
         script[state.scripted].pass == Pass::kWeight) {
    ++state.scripted;
  }
  const int32_t weight = PendingWeight(rank);
  pass = Pass::kWeight;
  if (state.scripted == script.size()) return weight;
  const RankPolicy& policy = policy_->ranks[At(rank)];
  if (weight != kNoLane && state.pending > policy.lag &&
      state.forwards_left > 0) {
    return weight;
  }
  const Op next = script[state.scripted];
  const Lane& lane = model_.lane(next.lane);
  const bool forward = next.pass == Pass::kForward;
  const double arrival = std::max(
      now, forward ? ForwardArrival(next.lane) : InputArrival(next.lane));
  const int64_t bytes = forward ? lane.forward_bytes : lane.input_bytes;
  const bool fits = model_.Fits(state.held + std::max<int64_t>(bytes, 0));
  if (arrival <= now + tolerance_ && fits) {
    ++state.scripted;
    pass = next.pass;
    return next.lane;
  }
  if (weight == kNoLane) return kNoLane;
  const double time = model_.lane(weight).weight * double{policy.gap};
  return !fits || arrival - now >= time - tolerance_ ? weight : kNoLane;
}

int32_t Greedy::ReadyInput(int32_t rank, double now) {
  const bool early = policy_->ranks[At(rank)].early_input_first;
  int32_t best = kNoLane;
  for (const int32_t l : model_.lanes_of_rank[At(rank)]) {
    if (InputArrival(l) > now + tolerance_) continue;
    best = l;
    if (early) break;
  }
  return best;
}

// Sets `blocked` if a forward has arrived but lacks memory.
int32_t Greedy::ReadyForward(int32_t rank, double now, bool& blocked) {
  const RankPolicy& policy = policy_->ranks[At(rank)];
  int32_t best = kNoLane;
  for (const int32_t l : model_.lanes_of_rank[At(rank)]) {
    if (ForwardArrival(l) > now + tolerance_) continue;
    if (Full(l, policy)) continue;
    if (!Admits(rank, l)) {
      blocked = true;
      continue;
    }
    best = l;
    if (!policy.late_forward_first) break;
  }
  return best;
}

// The pending backward-weight that releases most memory for its time.
int32_t Greedy::PendingWeight(int32_t rank) const {
  int32_t best = kNoLane;
  double most = 0;
  for (const int32_t l : model_.lanes_of_rank[At(rank)]) {
    const auto& done = lanes_[At(l)].done;
    if (done[2] == done[1]) continue;
    const Lane& lane = model_.lane(l);
    const double worth =
        -static_cast<double>(lane.weight_bytes) / (lane.weight + 1e-300);
    if (best != kNoLane && worth <= most) continue;
    best = l;
    most = worth;
  }
  return best;
}

// When the lane's next forward can begin, as far as known.
double Greedy::ForwardArrival(int32_t lane) const {
  const LaneState& state = lanes_[At(lane)];
  const int32_t turn = state.done[0];
  if (turn >= state.forwards_known) return kNever;
  return arrivals_[At(lane) * 2 * turns_ + At(turn)];
}

double Greedy::InputArrival(int32_t lane) const {
  const LaneState& state = lanes_[At(lane)];
  const int32_t turn = state.done[1];
  if (turn >= state.done[0]) return kNever;
  if (model_.lane(lane).after == kNoLane) return 0;
  if (turn >= state.inputs_known) return kNever;
  return arrivals_[(At(lane) * 2 + 1) * turns_ + At(turn)];
}

// When the next input arrives that makes an action possible.
double Greedy::NextArrival(int32_t rank, double now, bool inputs_only) const {
  const RankPolicy& policy = policy_->ranks[At(rank)];
  double next = kNever;
  for (const int32_t l : model_.lanes_of_rank[At(rank)]) {
    const double input = InputArrival(l);
    if (input > now) next = std::min(next, input);
    if (inputs_only) continue;
    const double forward = ForwardArrival(l);
    if (forward <= now || forward >= next) continue;
    if (!Full(l, policy) && Admits(rank, l)) next = forward;
  }
  return next;
}

bool Greedy::Full(int32_t lane, const RankPolicy& policy) const {
  const auto& done = lanes_[At(lane)].done;
  return enters_[At(lane)] && done[0] - done[1] >= policy.in_flight;
}

bool Greedy::Admits(int32_t rank, int32_t admitted) const {
  if (model_.memory_limit <= 0) return true;
  const std::vector<int32_t>& lanes = model_.lanes_of_rank[At(rank)];
  const int32_t direction = model_.lane(admitted).first_microbatch;
  int64_t held = ranks_[At(rank)].held + model_.lane(admitted).forward_bytes;
  int64_t inputs = 0;
  int32_t oldest = 0;  // Of the lane's direction.
  bool chunks = false;
  for (const int32_t l : lanes) {
    const Lane& lane = model_.lane(l);
    inputs = std::max(inputs, lane.input_bytes);
    if (enters_[At(l)]) oldest = lanes_[At(l)].done[1];
    if (lane.first_microbatch == direction) {
      chunks = chunks || !enters_[At(l)];
    } else if (oldest < lane.count && lanes_[At(l)].done[0] <= oldest) {
      held += lane.forward_bytes;
    }
  }
  held += inputs;
  return chunks ? CanFinish(lanes, admitted, held) : model_.Fits(held);
}

// Returns true if the direction's micro-batches can finish one after another
// after the rank admits that forward.
bool Greedy::CanFinish(const std::vector<int32_t>& lanes, int32_t admitted,
                       int64_t held) const {
  const int32_t direction = model_.lane(admitted).first_microbatch;
  const auto done = [&](int32_t l, size_t pass) {
    return lanes_[At(l)].done[pass] + (l == admitted && pass == 0 ? 1 : 0);
  };
  const auto first = std::find_if(lanes.begin(), lanes.end(), [&](int32_t l) {
    return model_.lane(l).first_microbatch == direction;
  });
  const int32_t entered = done(*first, 0);
  // Steps from one micro-batch to the next one that is less advanced.
  for (int32_t turn = done(*first, 1), next = 0; turn < entered; turn = next) {
    next = entered;
    int64_t own = 0;
    int64_t needs = 0;
    for (const int32_t l : lanes) {
      const Lane& lane = model_.lane(l);
      if (lane.first_microbatch != direction) continue;
      const std::array bytes = {lane.forward_bytes, lane.input_bytes,
                                lane.weight_bytes};
      for (size_t pass = 0; pass < bytes.size(); ++pass) {
        const bool has = done(l, pass) > turn;
        if (has) own += bytes[pass];
        if (has) next = std::min(next, done(l, pass));
        if (!has && pass == 0) needs += bytes[pass];
      }
    }
    if (!model_.Fits(held + needs)) return false;
    held -= own * (next - turn);
  }
  return true;
}

void Greedy::Do(int32_t rank, int32_t index, Pass pass, double now) {
  const Lane& lane = model_.lane(index);
  RankState& state = ranks_[At(rank)];
  order_[At(rank)].push_back({index, pass});
  ++lanes_[At(index)].done[static_cast<size_t>(pass)];
  state.free = now + lane.weight;
  if (pass == Pass::kForward) {
    state.free = now + lane.forward;
    state.held += lane.forward_bytes;
    ++state.in_flight;
    --state.forwards_left;
    Arrive(lane.after, pass, state.free + lane.forward_delay);
  } else if (pass == Pass::kInput) {
    state.free = now + lane.input;
    state.held += lane.input_bytes;
    state.warming_up = false;
    --state.in_flight;
    ++state.pending;
    Arrive(lane.before, pass, state.free + lane.input_delay);
  } else {
    state.held += lane.weight_bytes;
    --state.pending;
  }
  events_.push({state.free, rank});
}

void Greedy::Arrive(int32_t lane, Pass pass, double time) {
  if (lane == kNoLane) return;
  LaneState& state = lanes_[At(lane)];
  const bool forward = pass == Pass::kForward;
  int32_t& known = forward ? state.forwards_known : state.inputs_known;
  arrivals_[(At(lane) * 2 + (forward ? 0 : 1)) * turns_ + At(known++)] = time;
  events_.push({time, model_.lane(lane).rank});
}

namespace {

constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

// The number of micro-batches that the slowest rank processes while one travels
// from this rank to the end of the pipeline and back.
int32_t InFlight(const Model& model, int32_t rank, double share) {
  const auto& lanes = model.lanes_of_rank[static_cast<size_t>(rank)];
  double way = 0;
  for (int32_t l = lanes.front(); l != kNoLane; l = model.lane(l).after) {
    const Lane& lane = model.lane(l);
    way += lane.forward + lane.input + lane.forward_delay + lane.input_delay;
  }
  double pace = 0;
  for (size_t r = 0; r < model.ranks(); ++r) {
    pace = std::max(pace, model.WorkOf(r) / model.most_microbatches);
  }
  if (pace <= 0) return 1;
  return static_cast<int32_t>(std::min(std::ceil(share * way / pace) + 1, 1e6));
}

// No limit for a share of 0.
int32_t Most(const Model& model, size_t rank, double share) {
  return share <= 0 ? kNone
                    : InFlight(model, static_cast<int32_t>(rank), share);
}

constexpr std::array kInFlight = {0.0, 1.5};
constexpr std::array kEager = {-1.0, 0.0, 2.0, 1.0, 3.0};  // -1: not at all.
constexpr std::array kLags = {kNone, 1, 0};
constexpr std::array kGaps = {0.0f, 1.0f, 0.5f};
constexpr std::array kFirstPatience = {0.0f, 1.0f, 0.5f};
constexpr std::array kPatience = {0.0f, 0.5f};

}  // namespace

std::vector<Policy> FirstPolicies(const Model& model) {
  const bool chunks = model.lanes.size() > model.ranks();
  const size_t variants = chunks ? 4 : 1;
  std::vector<Policy> policies;
  // A number whose digits encode the choices.
  const size_t count = kGaps.size() * kEager.size() * variants *
                       kFirstPatience.size() * kInFlight.size() *
                       kPatience.size() * kLags.size();
  for (size_t number = 0; number < count; ++number) {
    size_t rest = number;
    const auto digit = [&rest](size_t base) {
      const size_t value = rest % base;
      rest /= base;
      return value;
    };
    RankPolicy rank;
    rank.gap = kGaps[digit(kGaps.size())];
    const double eager = kEager[digit(kEager.size())];
    rank.first_patience = kFirstPatience[digit(kFirstPatience.size())];
    const size_t variant = digit(variants);
    rank.late_forward_first = variant % 2 == 0;
    rank.early_input_first = variant / 2 == 0;
    const double in_flight = kInFlight[digit(kInFlight.size())];
    rank.patience = kPatience[digit(kPatience.size())];
    rank.lag = kLags[digit(kLags.size())];
    // An eager rank has no patience, and later patience requires first
    // patience.
    if (rank.patience > 0 && (eager >= 0 || rank.first_patience == 0)) continue;
    Policy& policy = policies.emplace_back(model);
    for (size_t r = 0; r < policy.ranks.size(); ++r) {
      policy.ranks[r] = rank;
      policy.ranks[r].in_flight = Most(model, r, in_flight);
      policy.ranks[r].eager = eager < 0 ? 0 : Most(model, r, eager);
    }
  }
  return policies;
}

Policy Vary(const Model& model, const Policy& policy, std::mt19937_64& random) {
  const auto below = [&random](size_t n) {
    return static_cast<size_t>(random() % n);
  };
  Policy varied = policy;
  const size_t ranks = varied.ranks.size();
  size_t first = below(ranks);
  size_t last = first + 1;
  if (below(2) == 0) last = first + 1 + below(ranks - first);
  if (below(6) == 0) first = 0, last = ranks;
  constexpr size_t kGapField = 4;
  // With a script only gap and lag can vary.
  const size_t field = policy.script ? kGapField + below(3) : below(10);
  const auto step = static_cast<int32_t>(below(5)) - 2;
  const float gap = std::array{0.f, .2f, .4f, .6f, .8f, 1.f, 1.5f}[below(7)];
  const float patience = std::array{0.f, .1f, .25f, .5f, 1.f}[below(5)];
  const bool flag = below(3) == 0;
  const double share = 0.5 * static_cast<double>(below(7));
  const bool chunks = model.lanes.size() > model.ranks();
  for (size_t r = first; r < last; ++r) {
    RankPolicy& rank = varied.ranks[r];
    if (field < kGapField) {
      int32_t& most = field < 2 ? rank.in_flight : rank.eager;
      if (most == kNone) most = InFlight(model, static_cast<int32_t>(r), 1);
      most = std::max(field < 2 ? 1 : 0, most + step);
    } else if (field < 6) {
      rank.gap = gap;
    } else if (field == 6) {
      rank.lag = step < 0 ? kNone : step + (rank.lag == kNone ? 0 : rank.lag);
    } else if (field == 7) {
      (flag ? rank.patience : rank.first_patience) = patience;
    } else if (field == 8 || !chunks) {
      rank.eager = flag ? 0 : Most(model, r, share);
    } else {
      (flag ? rank.late_forward_first : rank.early_input_first) ^= true;
    }
  }
  return varied;
}

}  // namespace tessera::pipeline::synthesis
