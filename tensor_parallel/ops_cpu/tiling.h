// Tiling: the sizes of a block of attention, how it is cut, and the tile of
// scores that both directions work on. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_TILING_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_TILING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor_parallel/ops/attention_block.h"
#include "tensor_parallel/ops_cpu/attention/heads.h"
#include "tensor_parallel/ops_cpu/attention/sight.h"
#include "tensor_parallel/ops_cpu/attention/softmax_kernels.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

// Scores of a tile take 128 KiB in f32: they stay in the second-level cache.
inline constexpr int64_t kTileKeys = 256;
inline constexpr int64_t kTileRows = 128;

struct Tiling {
  explicit Tiling(const AttentionBlock& block);

  // The query heads of a key head.
  IndexRange HeadsOf(int64_t kv_head) const {
    return {kv_head * group, (kv_head + 1) * group};
  }
  // The tile of queries from `begin` on.
  IndexRange QueriesFrom(int64_t begin) const;

  int64_t queries;
  int64_t keys;
  int64_t heads;
  int64_t kv_heads;
  int64_t group;  // heads / kv_heads
  int64_t d;
  int64_t tile_queries;  // Rows of a tile are queries times group.
};

// Scores of a tile of queries, a row for each head of each, and which of them
// count.
template <typename S>
class Scores {
 public:
  explicit Scores(const Tiling& tiling);

  // scores = scale rows key^T; rows is [queries * group, d]. Scores that are
  // not seen become minus infinity unless those seen are the first ones.
  void Compute(const AttentionBlock& block, const Sight& sight,
               const KeyTile& tile, IndexRange queries, int64_t width,
               const S* rows, const Head<S>& key);

  const ScoreTile<S>& tile() const { return tile_; }

 private:
  void Hide(const Sight& sight, const KeyTile& tile, IndexRange queries);

  Tiling tiling_;
  std::vector<int64_t> counts_;
  std::unique_ptr<S[]> scores_;
  ScoreTile<S> tile_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_TILING_H_
