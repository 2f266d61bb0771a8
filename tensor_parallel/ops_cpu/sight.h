// Sight: the keys that each query sees, in tiles of keys.
//
//   const Sight sight(query_positions, key_positions, /*causal=*/true, 256);
//   for (const KeyTile& tile : sight.tiles()) {
//     const int64_t width = sight.Width(tile, queries);  // 0: none is seen.
//     ...
//
// Under `causal` a query sees the keys of its own position and before. If the
// positions of a tile ascend, as in runs of a sequence, a query sees a prefix
// of the tile, found by bisection; otherwise each key is checked.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_SIGHT_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_SIGHT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

struct KeyTile {
  IndexRange keys;
  int64_t lowest = 0;  // Positions.
  int64_t highest = 0;
  bool ascends = true;
};

class Sight {
 public:
  // Positions must outlive it. `tile` is positive.
  Sight(std::span<const int64_t> query_positions,
        std::span<const int64_t> key_positions, bool causal, int64_t tile);

  const std::vector<KeyTile>& tiles() const { return tiles_; }

  // How many keys of the tile, from its first on, have all that any of
  // `queries` sees; 0 if none sees any.
  int64_t Width(const KeyTile& tile, IndexRange queries) const;

  // The same for one query. It sees a prefix of these if SeesPrefix(tile).
  int64_t Count(const KeyTile& tile, int64_t query) const;
  bool SeesPrefix(const KeyTile& tile) const {
    return !causal_ || tile.ascends;
  }
  bool Sees(int64_t query, int64_t key) const {
    return !causal_ || key_positions_[key] <= query_positions_[query];
  }

 private:
  std::span<const int64_t> query_positions_;
  std::span<const int64_t> key_positions_;
  bool causal_;
  std::vector<KeyTile> tiles_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_SIGHT_H_
