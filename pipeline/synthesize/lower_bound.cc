#include "pipeline/synthesize/lower_bound.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/rank_bound.h"

namespace tessera::pipeline {
namespace {

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

// By direction, of a rank: its first lane and its spans.
struct Passage {
  int32_t first = kNoLane;
  Spans spans;
};

bool SameDirection(const Model& model, int32_t a, int32_t b) {
  return model.lane(a).first_microbatch == model.lane(b).first_microbatch;
}

// A passage for each direction in which micro-batches come by the rank.
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
