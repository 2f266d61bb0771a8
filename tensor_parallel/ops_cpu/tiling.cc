#include "tensor_parallel/ops_cpu/attention/tiling.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor_parallel/ops/attention_block.h"
#include "tensor_parallel/ops_cpu/attention/heads.h"
#include "tensor_parallel/ops_cpu/attention/sight.h"
#include "tensor_parallel/ops_cpu/blas.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

Tiling::Tiling(const AttentionBlock& block)
    : queries(block.query.shape()[0]),
      keys(block.key.shape()[0]),
      heads(block.query.shape()[1]),
      kv_heads(block.key.shape()[1]),
      group(kv_heads == 0 ? 0 : heads / kv_heads),
      d(block.query.shape()[2]),
      tile_queries(std::clamp<int64_t>(kTileRows / std::max<int64_t>(group, 1),
                                       1, std::max<int64_t>(queries, 1))) {}

IndexRange Tiling::QueriesFrom(int64_t begin) const {
  return {begin, std::min(queries, begin + tile_queries)};
}

template <typename S>
Scores<S>::Scores(const Tiling& tiling)
    : tiling_(tiling),
      counts_(tiling.tile_queries * tiling.group),
      scores_(Scratch<S>(tiling.tile_queries * tiling.group * kTileKeys)) {
  tile_ = {
      .stride = kTileKeys, .counts = counts_.data(), .scores = scores_.get()};
}

template <typename S>
void Scores<S>::Compute(const AttentionBlock& block, const Sight& sight,
                        const KeyTile& tile, IndexRange queries, int64_t width,
                        const S* rows, const Head<S>& key) {
  tile_.rows = queries.size() * tiling_.group;
  tile_.width = width;
  Multiply<S>({tile_.rows, width, tiling_.d}, static_cast<S>(block.scale),
              {rows, tiling_.d},
              {key.row(tile.keys.begin), key.stride(), /*transposed=*/true}, 0,
              {scores_.get(), kTileKeys});
  for (int64_t row = 0; row < tile_.rows; ++row) {
    counts_[row] = sight.Count(tile, queries.begin + row / tiling_.group);
  }
  if (!sight.SeesPrefix(tile)) Hide(sight, tile, queries);
}

template <typename S>
void Scores<S>::Hide(const Sight& sight, const KeyTile& tile,
                     IndexRange queries) {
  for (int64_t row = 0; row < tile_.rows; ++row) {
    const int64_t query = queries.begin + row / tiling_.group;
    S* const scores = scores_.get() + row * kTileKeys;
    for (int64_t j = 0; j < counts_[row]; ++j) {
      if (!sight.Sees(query, tile.keys.begin + j)) {
        scores[j] = -std::numeric_limits<S>::infinity();
      }
    }
  }
}

template class Scores<float>;
template class Scores<double>;

}  // namespace tessera::tensor_parallel::cpu
