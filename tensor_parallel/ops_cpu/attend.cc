#include "tensor_parallel/ops_cpu/attention/attend.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "tensor_parallel/ops/attention_block.h"
#include "tensor_parallel/ops_cpu/attention/heads.h"
#include "tensor_parallel/ops_cpu/attention/sight.h"
#include "tensor_parallel/ops_cpu/attention/softmax_kernels.h"
#include "tensor_parallel/ops_cpu/attention/tiling.h"
#include "tensor_parallel/ops_cpu/blas.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {
namespace {

// What a tile of queries has seen so far: what came before counts as one key
// whose score is its log_sum_exp and whose value is its output.
template <typename S>
class RunningState {
 public:
  RunningState(const Tiling& tiling, const AttentionState& state)
      : tiling_(tiling),
        state_(state),
        largest_(Scratch<S>(tiling.tile_queries * tiling.group)),
        sum_(Scratch<S>(tiling.tile_queries * tiling.group)),
        output_(Scratch<S>(tiling.tile_queries * tiling.group * tiling.d)) {}

  void Begin(IndexRange queries, IndexRange heads) {
    queries_ = queries;
    heads_ = heads;
    ReadHeads<S>(state_.output, queries, heads, output_.get());
    for (int64_t i = 0; i < rows(); ++i) {
      largest_[i] = LogSumExp(i);
      sum_[i] = largest_[i] == kNothing ? S{0} : S{1};
    }
  }

  // Merges the scores of a tile with the values of its keys.
  void Merge(const ScoreTile<S>& tile, const S* values, int64_t stride) {
    RunSoftmax({.tile = tile,
                .largest = largest_.get(),
                .sum = sum_.get(),
                .output = output_.get(),
                .d = tiling_.d});
    Multiply<S>({tile.rows, tiling_.d, tile.width}, 1,
                {tile.scores, tile.stride}, {values, stride}, 1,
                {output_.get(), tiling_.d});
  }

  void End() {
    for (int64_t i = 0; i < rows(); ++i) {
      if (sum_[i] == 0) continue;  // Nothing seen: as it was.
      S* const output = output_.get() + i * tiling_.d;
      for (int64_t j = 0; j < tiling_.d; ++j) output[j] /= sum_[i];
      LogSumExp(i) = largest_[i] + std::log(sum_[i]);
    }
    WriteHeads<S>(Writing::kSet, output_.get(), queries_, heads_,
                  state_.output);
  }

 private:
  static constexpr S kNothing = -std::numeric_limits<S>::infinity();

  int64_t rows() const { return queries_.size() * heads_.size(); }
  S& LogSumExp(int64_t row) const {
    const int64_t query = queries_.begin + row / heads_.size();
    const int64_t head = heads_.begin + row % heads_.size();
    return reinterpret_cast<S*>(
        state_.log_sum_exp.data())[query * tiling_.heads + head];
  }

  const Tiling& tiling_;
  const AttentionState& state_;
  IndexRange queries_;
  IndexRange heads_;
  std::unique_ptr<S[]> largest_;
  std::unique_ptr<S[]> sum_;
  std::unique_ptr<S[]> output_;
};

}  // namespace

template <typename S>
void RunAttend(const AttentionBlock& block, const AttentionState& state) {
  const Tiling tiling(block);
  const Sight sight(block.query_positions, block.key_positions, block.causal,
                    kTileKeys);
  Scores<S> scores(tiling);
  RunningState<S> running(tiling, state);
  const auto query = Scratch<S>(tiling.tile_queries * tiling.group * tiling.d);
  for (int64_t kv_head = 0; kv_head < tiling.kv_heads; ++kv_head) {
    const Head<S> key(block.key, kv_head);
    const Head<S> value(block.value, kv_head);
    const IndexRange heads = tiling.HeadsOf(kv_head);
    for (int64_t at = 0; at < tiling.queries; at += tiling.tile_queries) {
      const IndexRange queries = tiling.QueriesFrom(at);
      bool begun = false;
      for (const KeyTile& tile : sight.tiles()) {
        const int64_t width = sight.Width(tile, queries);
        if (width == 0) continue;
        if (!begun) {
          ReadHeads<S>(block.query, queries, heads, query.get());
          running.Begin(queries, heads);
          begun = true;
        }
        scores.Compute(block, sight, tile, queries, width, query.get(), key);
        running.Merge(scores.tile(), value.row(tile.keys.begin),
                      value.stride());
      }
      if (begun) running.End();
    }
  }
}

template void RunAttend<float>(const AttentionBlock&, const AttentionState&);
template void RunAttend<double>(const AttentionBlock&, const AttentionState&);

}  // namespace tessera::tensor_parallel::cpu
