#include "tensor_parallel/ops_cpu/sight.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

Sight::Sight(std::span<const int64_t> query_positions,
             std::span<const int64_t> key_positions, bool causal, int64_t tile)
    : query_positions_(query_positions),
      key_positions_(key_positions),
      causal_(causal) {
  const auto keys = static_cast<int64_t>(key_positions.size());
  for (int64_t begin = 0; begin < keys; begin += tile) {
    const int64_t end = std::min(keys, begin + tile);
    const auto part = key_positions.subspan(begin, end - begin);
    const auto [lowest, highest] =
        std::minmax_element(part.begin(), part.end());
    tiles_.push_back({.keys = {begin, end},
                      .lowest = *lowest,
                      .highest = *highest,
                      .ascends = std::is_sorted(part.begin(), part.end())});
  }
}

int64_t Sight::Width(const KeyTile& tile, IndexRange queries) const {
  int64_t width = 0;
  for (int64_t query = queries.begin; query < queries.end; ++query) {
    width = std::max(width, Count(tile, query));
    if (width == tile.keys.size()) break;
  }
  return width;
}

int64_t Sight::Count(const KeyTile& tile, int64_t query) const {
  if (!causal_ || query_positions_[query] >= tile.highest) {
    return tile.keys.size();
  }
  if (query_positions_[query] < tile.lowest) return 0;
  if (!tile.ascends) return tile.keys.size();
  const auto first = key_positions_.begin() + tile.keys.begin;
  const auto last = key_positions_.begin() + tile.keys.end;
  return std::upper_bound(first, last, query_positions_[query]) - first;
}

}  // namespace tessera::tensor_parallel::cpu
