#include "pipeline/synthesize/policies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tessera::pipeline::synthesis {
namespace {

constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

// How many micro-batches the slowest rank does while one goes from this rank to
// the end of the pipeline and back.
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

// For a share of 0: no limit.
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
  // A number whose digits are the choices.
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
    // Whoever is eager has no patience, and the second without the first is
    // none.
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
  // A script leaves only gap and lag to choose.
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
