#include "pipeline/synthesize/lower_bound.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {
namespace {

// Lower bounds for a rank: the time from its first begin to its last end, and
// from its first forward (of a direction) to its last backward-input.
struct Spans {
  double to_weight = 0;
  double to_input = 0;
};

// An item with at most `count` copies.
struct Item {
  double value = 0;
  int64_t bytes = 0;
  int64_t count = 0;
};

// An upper bound of the value that fits: the fractional knapsack.
double FractionalKnapsack(std::vector<Item> items, int64_t room) {
  double value = 0;
  for (Item& item : items) {
    if (item.bytes > 0) continue;
    value += item.value * static_cast<double>(item.count);
    item = {.value = 0, .bytes = 1, .count = 0};
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.value * static_cast<double>(b.bytes) >
           b.value * static_cast<double>(a.bytes);
  });
  double left = static_cast<double>(std::max<int64_t>(room, 0));
  for (const Item& item : items) {
    if (item.count == 0) continue;
    const double bytes =
        static_cast<double>(item.bytes) * static_cast<double>(item.count);
    const double share = bytes <= left ? 1 : left / bytes;
    value += share * item.value * static_cast<double>(item.count);
    left -= share * bytes;
  }
  return value;
}

// A rank whose micro-batches all travel in one direction.
class OneWayRank {
 public:
  OneWayRank(const Model& model, const Ways& ways, size_t rank)
      : model_(model),
        ways_(ways),
        lanes_(model.lanes_of_rank[rank]),
        first_(lanes_.front()),
        last_(lanes_.back()),
        m_(model.lane(first_).count),
        limited_(model.memory_limit > 0) {
    for (const int32_t l : lanes_) {
      const Lane& lane = model.lane(l);
      forwards_ += m_ * lane.forward;
      inputs_ += m_ * lane.input;
      weights_ += m_ * lane.weight;
      bytes_ += m_ * lane.forward_bytes;
      limited_ = limited_ && lane.held_by_forward() >= 0 &&
                 lane.held_by_input() >= 0 && lane.held_at_end() >= 0;
    }
  }

  Spans Bound() const {
    Spans spans = Single();
    Raise(spans, Ends());
    if (limited_ && lanes_.size() == 1) Raise(spans, Slots());
    return spans;
  }

 private:
  static void Raise(Spans& spans, const Spans& by) {
    spans.to_weight = std::max(spans.to_weight, by.to_weight);
    spans.to_input = std::max(spans.to_input, by.to_input);
  }

  // Work, and one micro-batch.
  Spans Single() const {
    const Lane& lane = model_.lane(first_);
    const double turn = ways_.Turn(first_, first_) + lane.input;
    return {std::max(forwards_ + inputs_ + weights_, turn + lane.weight),
            std::max(forwards_ + inputs_, turn)};
  }

  Spans Ends() const {
    Spans apart = Apart();
    if (limited_ && bytes_ > model_.memory_limit) return apart;
    // All forwards may come first.
    const Lane& first = model_.lane(first_);
    const double begin_of_inputs =
        std::max(ways_.Turn(first_, last_), forwards_);
    const double end_of_last = forwards_ - model_.lane(last_).forward +
                               ways_.Turn(last_, first_) + first.input;
    const Spans together = {std::max(begin_of_inputs + inputs_ + weights_,
                                     end_of_last + first.weight),
                            std::max(begin_of_inputs + inputs_, end_of_last)};
    return {std::min(apart.to_weight, together.to_weight),
            std::min(apart.to_input, together.to_input)};
  }

  // If the first I comes before the last F.
  Spans Apart() const {
    const double at_begin =
        std::max(0.0, ways_.Turn(first_, last_) - MostForwardsBeforeInput());
    Spans spans = {forwards_ + inputs_ + weights_ + at_begin,
                   forwards_ + inputs_ + at_begin};
    if (lanes_.size() > 1) {
      spans.to_weight += IdleAfterForwards();
      return spans;
    }
    const auto [idle, forced] = EndOfOneStage();
    spans.to_weight += idle;
    spans.to_input += forced;
    return spans;
  }

  double MostForwardsBeforeInput() const {
    if (!limited_) return forwards_;
    if (lanes_.size() == 1) {
      return model_.lane(first_).forward *
             static_cast<double>(Slots(model_.lane(first_).held_by_forward()));
    }
    std::vector<Item> items;
    for (const int32_t l : lanes_) {
      items.push_back(
          {model_.lane(l).forward, model_.lane(l).held_by_forward(), m_});
    }
    return FractionalKnapsack(std::move(items), model_.memory_limit);
  }

  // The number of micro-batches of that many bytes that fit in memory, at most
  // all.
  int64_t Slots(int64_t bytes) const {
    if (bytes <= 0) return m_;
    return std::min<int64_t>(m_, model_.memory_limit / bytes);
  }

  // Idle time from the begin of the last F to its I; and, up to the last I,
  // idle time and the W that come before that F.
  std::pair<double, double> EndOfOneStage() const {
    const Lane& lane = model_.lane(first_);
    const double turn = ways_.Turn(first_, first_);
    std::pair<double, double> least = {turn + forwards_ + weights_,
                                       turn + forwards_ + weights_};
    // One micro-batch has done its I.
    const int64_t most = std::max<int64_t>(1, m_ - 1);
    const int64_t slots =
        limited_ ? std::min(most, Slots(lane.held_by_forward())) : most;
    for (int64_t x = 1; x <= std::max<int64_t>(slots, 1); ++x) {
      int64_t y = m_ - x;
      if (limited_ && lane.held_by_input() > 0) {
        const int64_t room = model_.memory_limit - x * lane.held_by_forward();
        y = std::min(y, std::max<int64_t>(room, 0) / lane.held_by_input());
      }
      const double idle = std::max(
          0.0, turn - lane.forward - static_cast<double>(x - 1) * lane.input);
      const double with_weights =
          std::max(0.0, idle - static_cast<double>(x + y - 1) * lane.weight);
      const double before = static_cast<double>(m_ - x - y) * lane.weight;
      least.first = std::min(least.first, with_weights);
      least.second = std::min(least.second, before + idle);
    }
    return least;
  }

  // The same for several stages.
  double IdleAfterForwards() const {
    const Lane& last = model_.lane(last_);
    std::vector<Item> items;
    for (const int32_t l : lanes_) {
      const Lane& lane = model_.lane(l);
      items.push_back({lane.input + lane.weight, lane.held_by_forward(), m_});
      items.push_back({lane.weight, lane.held_by_input(), m_});
    }
    const double fill =
        limited_
            ? FractionalKnapsack(std::move(items),
                                 model_.memory_limit - last.held_by_forward())
            : inputs_ + weights_;
    return std::max(0.0, ways_.Turn(last_, last_) - last.forward - fill);
  }

  // The bound for one stage with limited memory.
  Spans Slots() const {
    const Lane& lane = model_.lane(first_);
    const double life = ways_.Turn(first_, first_) + lane.input;
    const auto span = [&](int64_t slots, double renewal) {
      if (slots < 1) return 0.0;
      const int64_t rounds = (m_ - 1) / slots;
      const int64_t rest = (m_ - 1) % slots;
      return static_cast<double>(rounds) *
                 std::max(renewal, static_cast<double>(slots) * lane.forward) +
             static_cast<double>(rest) * lane.forward + life;
    };
    const int64_t before_input = Slots(lane.held_by_forward());
    const bool no_weight_beside =
        lane.held_by_input() > 0 &&
        model_.memory_limit - before_input * lane.held_by_forward() <
            lane.held_by_input();
    double most = span(
        before_input,
        life + (no_weight_beside ? std::min(lane.forward, lane.weight) : 0));
    const int64_t least_bytes =
        std::min(lane.held_by_forward(), lane.held_by_input());
    most = std::max(most, span(Slots(least_bytes), life + lane.weight));
    return {most + lane.weight, most};
  }

  const Model& model_;
  const Ways& ways_;
  const std::vector<int32_t>& lanes_;
  int32_t first_;
  int32_t last_;
  int64_t m_;
  bool limited_;
  double forwards_ = 0;
  double inputs_ = 0;
  double weights_ = 0;
  int64_t bytes_ = 0;
};

// The bound of a rank whose micro-batches all travel in one direction.
Spans BoundOfOneWayRank(const Model& model, const Ways& ways, size_t rank) {
  return OneWayRank(model, ways, rank).Bound();
}

}  // namespace
}  // namespace tessera::pipeline::synthesis

namespace tessera::pipeline {
namespace {

using synthesis::BoundOfOneWayRank;
using synthesis::kNoLane;
using synthesis::Lane;
using synthesis::MakeModel;
using synthesis::Model;
using synthesis::Spans;
using synthesis::Ways;

constexpr double kRounding = 1e-12;

// Bytes times time, over the limit.
double TimeForBytes(const Model& model, const Ways& ways, size_t rank) {
  if (model.memory_limit <= 0) return 0;
  double sum = 0;
  for (const int32_t l : model.lanes_of_rank[rank]) {
    const Lane& lane = model.lane(l);
    if (lane.held_by_forward() < 0 || lane.held_by_input() < 0 ||
        lane.held_at_end() < 0) {
      return 0;
    }
    sum +=
        lane.count * ((ways.Turn(l, l) + lane.input) *
                          static_cast<double>(lane.held_by_forward()) +
                      lane.weight * static_cast<double>(lane.held_by_input()));
  }
  return sum / static_cast<double>(model.memory_limit);
}

// A rank's first lane and spans in one direction.
struct Passage {
  int32_t first = kNoLane;
  Spans spans;
};

bool SameDirection(const Model& model, int32_t a, int32_t b) {
  return model.lane(a).first_microbatch == model.lane(b).first_microbatch;
}

// A passage for each direction in which micro-batches pass the rank.
std::vector<Passage> PassagesOf(const Model& model, const Ways& ways,
                                size_t rank) {
  const std::vector<int32_t>& lanes = model.lanes_of_rank[rank];
  if (SameDirection(model, lanes.front(), lanes.back())) {
    return {{lanes.front(), BoundOfOneWayRank(model, ways, rank)}};
  }
  std::vector<Passage> passages;
  for (const int32_t l : lanes) {
    const Lane& lane = model.lane(l);
    if (passages.empty() || !SameDirection(model, passages.back().first, l)) {
      const double turn = ways.Turn(l, l) + lane.input;
      passages.push_back({l, {turn + lane.weight, turn}});
      passages.back().spans.to_weight =
          std::max(turn + lane.weight, model.WorkOf(rank));
    }
    double work = 0;
    for (const int32_t other : lanes) {
      if (!SameDirection(model, l, other)) continue;
      work +=
          lane.count * (model.lane(other).forward + model.lane(other).input);
    }
    passages.back().spans.to_input =
        std::max(passages.back().spans.to_input, work);
  }
  return passages;
}

// The bound that ranks after a rank's first lane impose on it.
double OfOtherRanks(const Model& model, const Ways& ways,
                    std::vector<Passage> passages) {
  std::sort(
      passages.begin(), passages.end(),
      [](const Passage& a, const Passage& b) { return a.first > b.first; });
  double bound = 0;
  // The longest time from entry to exit of the direction.
  double longest = 0;
  int32_t direction = -1;
  for (const auto& [lane, spans] : passages) {
    if (model.lane(lane).first_microbatch != direction) {
      direction = model.lane(lane).first_microbatch;
      longest = 0;
    }
    const double aside = ways.Aside(lane);
    longest = std::max(longest, spans.to_input + aside);
    bound = std::max(bound, longest - aside + model.lane(lane).weight);
  }
  return bound;
}

double BoundOf(const Model& model) {
  const Ways ways(model);
  std::vector<Passage> passages;
  double bound = 0;
  for (size_t rank = 0; rank < model.ranks(); ++rank) {
    bound = std::max(bound, TimeForBytes(model, ways, rank));
    for (const Passage& passage : PassagesOf(model, ways, rank)) {
      passages.push_back(passage);
      bound = std::max(bound, passage.spans.to_weight);
    }
  }
  return std::max(bound, OfOtherRanks(model, ways, passages)) * (1 - kRounding);
}

}  // namespace

absl::StatusOr<double> LowerBound(const StageMap& map, int64_t microbatches,
                                  const Costs& costs, int64_t memory_limit) {
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, map.stages()));
  if (microbatches < 1 || microbatches > kMostIndex) {
    return absl::InvalidArgumentError(
        absl::StrCat(microbatches, " micro-batches; give 1 to ", kMostIndex));
  }
  if (memory_limit < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a memory limit of ", memory_limit,
                     " bytes; give the bytes per rank, or 0 for none"));
  }
  return BoundOf(MakeModel(map, microbatches, costs, memory_limit));
}

}  // namespace tessera::pipeline
