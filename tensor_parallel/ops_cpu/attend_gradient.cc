#include <cstdint>
#include <memory>

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/attention_block.h"
#include "tensor_parallel/ops_cpu/attention/attend.h"
#include "tensor_parallel/ops_cpu/attention/heads.h"
#include "tensor_parallel/ops_cpu/attention/sight.h"
#include "tensor_parallel/ops_cpu/attention/softmax_kernels.h"
#include "tensor_parallel/ops_cpu/attention/tiling.h"
#include "tensor_parallel/ops_cpu/blas.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {
namespace {

// The gradients of a tile of queries against one tile of keys after the other.
//   p = exp(scale q k^T - log_sum_exp), ds = p (do v^T - delta)
//   dv += p^T do, dk += scale ds^T q, dq += scale ds k
template <typename S>
class QueryTile {
 public:
  QueryTile(const AttentionBlock& block, const AttentionGradients& gradients,
            const Tiling& tiling, const Sight& sight)
      : block_(block),
        gradients_(gradients),
        tiling_(tiling),
        sight_(sight),
        max_rows_(tiling.tile_queries * tiling.group),
        scores_(tiling),
        query_(Scratch<S>(max_rows_ * tiling.d)),
        output_gradient_(Scratch<S>(max_rows_ * tiling.d)),
        query_gradient_(Scratch<S>(max_rows_ * tiling.d)),
        log_sum_exp_(Scratch<S>(max_rows_)),
        delta_(Scratch<S>(max_rows_)),
        products_(Scratch<S>(max_rows_ * kTileKeys)) {}

  void Run(IndexRange queries, int64_t kv_head, const Head<S>& key,
           const Head<S>& value) {
    bool begun = false;
    for (const KeyTile& tile : sight_.tiles()) {
      const int64_t width = sight_.Width(tile, queries);
      if (width == 0) continue;
      if (!begun) Read(queries, tiling_.HeadsOf(kv_head));
      ScoreGradients(tile, queries, width, key, value);
      AddToKeys(tile, kv_head);
      AddToQueries(tile, key, begun);
      begun = true;
    }
    if (begun) {
      WriteHeads<S>(Writing::kAdd, query_gradient_.get(), queries,
                    tiling_.HeadsOf(kv_head), gradients_.query_gradient);
    }
  }

 private:
  void Read(IndexRange queries, IndexRange heads) {
    ReadHeads<S>(block_.query, queries, heads, query_.get());
    ReadHeads<S>(gradients_.output_gradient, queries, heads,
                 output_gradient_.get());
    const auto* log_sum_exp =
        reinterpret_cast<const S*>(gradients_.log_sum_exp.data());
    const auto* delta = reinterpret_cast<const S*>(gradients_.delta.data());
    int64_t row = 0;
    for (int64_t query = queries.begin; query < queries.end; ++query) {
      for (int64_t head = heads.begin; head < heads.end; ++head, ++row) {
        log_sum_exp_[row] = log_sum_exp[query * tiling_.heads + head];
        delta_[row] = delta[query * tiling_.heads + head];
      }
    }
  }

  void ScoreGradients(const KeyTile& tile, IndexRange queries, int64_t width,
                      const Head<S>& key, const Head<S>& value) {
    scores_.Compute(block_, sight_, tile, queries, width, query_.get(), key);
    Multiply<S>({scores_.tile().rows, width, tiling_.d}, 1,
                {output_gradient_.get(), tiling_.d},
                {value.row(tile.keys.begin), value.stride(), true}, 0,
                {products_.get(), kTileKeys});
    RunSoftmaxGradient({.tile = scores_.tile(),
                        .log_sum_exp = log_sum_exp_.get(),
                        .delta = delta_.get(),
                        .products = products_.get()});
  }

  // Straight to the gradients: statistics, without gaps.
  void AddToKeys(const KeyTile& tile, int64_t kv_head) {
    const ScoreTile<S>& scores = scores_.tile();
    const BlasShape shape = {scores.width, tiling_.d, scores.rows};
    const auto target = [&](const TensorView& gradient) -> BlasResult<S> {
      const int64_t row = tile.keys.begin * tiling_.kv_heads + kv_head;
      return {reinterpret_cast<S*>(gradient.data()) + row * tiling_.d,
              tiling_.kv_heads * tiling_.d};
    };
    Multiply<S>(shape, 1, {scores.scores, kTileKeys, true},
                {output_gradient_.get(), tiling_.d}, 1,
                target(gradients_.value_gradient));
    Multiply<S>(shape, static_cast<S>(block_.scale),
                {products_.get(), kTileKeys, true}, {query_.get(), tiling_.d},
                1, target(gradients_.key_gradient));
  }

  void AddToQueries(const KeyTile& tile, const Head<S>& key, bool begun) {
    const ScoreTile<S>& scores = scores_.tile();
    Multiply<S>({scores.rows, tiling_.d, scores.width},
                static_cast<S>(block_.scale), {products_.get(), kTileKeys},
                {key.row(tile.keys.begin), key.stride()}, begun ? 1 : 0,
                {query_gradient_.get(), tiling_.d});
  }

  const AttentionBlock& block_;
  const AttentionGradients& gradients_;
  const Tiling& tiling_;
  const Sight& sight_;
  int64_t max_rows_;
  Scores<S> scores_;
  std::unique_ptr<S[]> query_;
  std::unique_ptr<S[]> output_gradient_;
  std::unique_ptr<S[]> query_gradient_;
  std::unique_ptr<S[]> log_sum_exp_;
  std::unique_ptr<S[]> delta_;
  std::unique_ptr<S[]> products_;
};

}  // namespace

template <typename S>
void RunAttendGradient(const AttentionBlock& block,
                       const AttentionGradients& gradients) {
  const Tiling tiling(block);
  const Sight sight(block.query_positions, block.key_positions, block.causal,
                    kTileKeys);
  QueryTile<S> tile(block, gradients, tiling, sight);
  for (int64_t kv_head = 0; kv_head < tiling.kv_heads; ++kv_head) {
    const Head<S> key(block.key, kv_head);
    const Head<S> value(block.value, kv_head);
    for (int64_t at = 0; at < tiling.queries; at += tiling.tile_queries) {
      tile.Run(tiling.QueriesFrom(at), kv_head, key, value);
    }
  }
}

template void RunAttendGradient<float>(const AttentionBlock&,
                                       const AttentionGradients&);
template void RunAttendGradient<double>(const AttentionBlock&,
                                        const AttentionGradients&);

}  // namespace tessera::tensor_parallel::cpu
