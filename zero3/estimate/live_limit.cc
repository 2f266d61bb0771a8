#include "zero3/estimate/live_limit.h"

#include <algorithm>

#include "base/dtype/dtype.h"

namespace tessera::zero3 {
namespace {

using topology::Rank;

// Small parameters, the same on every rank.
int64_t ResidentBytes(const StateLayout& layout) {
  int64_t bytes = 0;
  for (const Parameter& parameter : layout.model().all()) {
    if (!layout.IsSmall(parameter.id)) continue;
    bytes +=
        layout.GatheredElements(parameter.id) * SizeInBytes(parameter.dtype());
  }
  return bytes;
}

// The slots of the parameters that are gathered, on the rank with the most.
int64_t LargestShardBytes(const StateLayout& layout) {
  // Chunks are alike on every rank.
  const bool is_even = layout.options().kind == LayoutKind::kChunks;
  int64_t largest = 0;
  for (int64_t rank = 0; rank < (is_even ? 1 : layout.ranks()); ++rank) {
    int64_t bytes = 0;
    for (const Extent& extent : layout.ExtentsOf(Rank(rank))) {
      const Parameter& parameter = layout.model()[extent.parameter];
      if (layout.IsSmall(parameter.id)) continue;
      bytes += extent.slot * SizeInBytes(parameter.dtype());
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

}  // namespace

int64_t LiveLimit(const StateLayout& layout, const LiveBudget& budget) {
  int64_t widest = 1;
  for (const Parameter& parameter : layout.model().all()) {
    if (layout.IsSmall(parameter.id) || parameter.elements == 0) continue;
    widest = std::max(widest, SizeInBytes(parameter.dtype()));
  }
  const int64_t stays = ResidentBytes(layout) +
                        (budget.shards_in_tier ? 0 : LargestShardBytes(layout));
  const int64_t room = std::max<int64_t>(budget.budget_bytes - stays, 0);
  return std::min(budget.max_elements, room / widest);
}

}  // namespace tessera::zero3
