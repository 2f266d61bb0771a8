// Heads of [tokens, heads, d] tensors as matrices of statistics.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/os/thread_pool.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

// Uninitialised values; there may be none.
template <typename S>
std::unique_ptr<S[]> Scratch(int64_t size) {
  return std::make_unique_for_overwrite<S[]>(static_cast<size_t>(size));
}

// Copies to `rows`: for each token its heads, d values each. S is the type of
// x's statistics, here and below.
template <typename S>
void ReadHeads(const ConstTensorView& x, IndexRange tokens, IndexRange heads,
               S* rows);

// The other way, for statistics: x = rows, or x += rows.
enum class Writing { kSet, kAdd };
template <typename S>
void WriteHeads(Writing writing, const S* rows, IndexRange tokens,
                IndexRange heads, const TensorView& x);

// All tokens of one head, as a matrix: in place if it is of type S and BLAS
// accepts its stride, else a copy. (Copies without gaps were not faster,
// although heads are a power of two apart.)
template <typename S>
class Head {
 public:
  Head(const ConstTensorView& x, int64_t head);

  const S* row(int64_t token) const { return data_ + token * stride_; }
  int64_t stride() const { return stride_; }

 private:
  std::unique_ptr<S[]> copy_;
  const S* data_;
  int64_t stride_;
};

// Tiling: the sizes of a block of attention, how it is cut, and the tile of
// scores that both directions work on. Internal.

// Scores of a tile take 128 KiB in f32: they stay in the second-level cache.
inline constexpr int64_t kTileKeys = 256;
inline constexpr int64_t kTileRows = 128;

// The block of one sequence: views of [tokens, heads, d].
struct Tiling {
  explicit Tiling(const AttentionBlock& block);

  // The query heads of a key head.
  IndexRange HeadsOf(int64_t kv_head) const {
    return {kv_head * group, (kv_head + 1) * group};
  }
  // The tile of queries from `begin` on.
  IndexRange QueriesFrom(int64_t begin) const;

  // How many keys, from the first on, a query sees; the next query sees at
  // least as many.
  int64_t SeenBy(int64_t query) const {
    return is_causal ? std::clamp<int64_t>(query + 1 + keys - queries, 0, keys)
                     : keys;
  }
  // The tile of the keys from `begin` on that the last of `queries` sees.
  IndexRange KeysFrom(int64_t begin, IndexRange queries) const;

  int64_t queries;
  int64_t keys;
  int64_t heads;
  int64_t kv_heads;
  int64_t group;  // heads / kv_heads
  int64_t d;
  bool is_causal;
  int64_t tile_queries;  // Rows of a tile are queries times group.
};

// Scores of a tile of queries, a row for each head of each, and how many of
// them count.
template <typename S>
class Scores {
 public:
  explicit Scores(const Tiling& tiling);

  // scores = scale rows key^T for a tile of keys; rows is [queries * group, d].
  void Compute(double scale, IndexRange keys, IndexRange queries, const S* rows,
               const Head<S>& key);

  const ScoreTile<S>& tile() const { return tile_; }

 private:
  Tiling tiling_;
  std::vector<int64_t> counts_;
  std::unique_ptr<S[]> scores_;
  ScoreTile<S> tile_;
};

// Attend and AttendGradient of ops/ops.h on the CPU.
//
// Tiles of queries (all heads that share a key head together) against tiles of
// keys: two products by OpenBLAS a tile forward, five backward, and one pass of
// the softmax between them. Scores are never stored but for a tile; tiles that
// no query sees are skipped, and tiles that are partly seen are cut to the keys
// that are. Threads take a key head of a sequence (forward: for some of the
// queries) at a time; bf16 keys and values of it are converted to f32, which
// takes keys x d floats for each of the two and each thread.
//
// State and gradients must not overlap anything else.

void Attend(ThreadPool& pool, const AttentionBlock& block,
            const AttentionState& state);
void AttendGradient(ThreadPool& pool, const AttentionBlock& block,
                    const AttentionGradients& gradients);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
