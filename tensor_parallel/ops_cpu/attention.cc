#include "tensor_parallel/ops_cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

namespace {

template <typename Byte>
BasicRowsView<Byte> HeadsOf(const BasicTensorView<Byte>& x, int64_t token,
                            int64_t head) {
  const int64_t offset = token * x.strides()[0] + head * x.strides()[1];
  return BasicRowsView<Byte>(x.data() + offset * SizeInBytes(x.dtype()),
                             x.strides()[1]);
}

// The row of a token in statistics of [tokens, heads].
template <typename S, typename Byte>
auto StatisticsAt(const BasicTensorView<Byte>& x, int64_t token) {
  return BasicRowsView<Byte>(x).template row<S>(token);
}

// The running softmax of a tile of queries: earlier keys count as one key whose
// score is their log_sum_exp and whose value is their output.
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
    return StatisticsAt<S>(state_.log_sum_exp, query)[head];
  }

  const Tiling& tiling_;
  const AttentionState& state_;
  IndexRange queries_;
  IndexRange heads_;
  std::unique_ptr<S[]> largest_;
  std::unique_ptr<S[]> sum_;
  std::unique_ptr<S[]> output_;
};

// The gradients of a tile of queries against one tile of keys after the other.
//   p = exp(scale q k^T - log_sum_exp), ds = p (do v^T - delta)
//   dv += p^T do, dk += scale ds^T q, dq += scale ds k
template <typename S>
class QueryTile {
 public:
  QueryTile(const AttentionBlock& block, const AttentionGradients& gradients,
            const Tiling& tiling)
      : block_(block),
        gradients_(gradients),
        tiling_(tiling),
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
    for (int64_t at = 0; at < tiling_.keys; at += kTileKeys) {
      const IndexRange keys = tiling_.KeysFrom(at, queries);
      if (keys.size() == 0) break;
      if (!begun) Read(queries, tiling_.HeadsOf(kv_head));
      ScoreGradients(keys, queries, key, value);
      AddToKeys(keys, kv_head);
      AddToQueries(keys, key, begun);
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
    int64_t row = 0;
    for (int64_t query = queries.begin; query < queries.end; ++query) {
      const S* const log_sum_exp =
          StatisticsAt<S>(gradients_.log_sum_exp, query);
      const S* const delta = StatisticsAt<S>(gradients_.delta, query);
      for (int64_t head = heads.begin; head < heads.end; ++head, ++row) {
        log_sum_exp_[row] = log_sum_exp[head];
        delta_[row] = delta[head];
      }
    }
  }

  void ScoreGradients(IndexRange keys, IndexRange queries, const Head<S>& key,
                      const Head<S>& value) {
    scores_.Compute(block_.scale, keys, queries, query_.get(), key);
    Multiply<S>({scores_.tile().rows, keys.size(), tiling_.d}, 1,
                {output_gradient_.get(), tiling_.d},
                {value.row(keys.begin), value.stride(), true}, 0,
                {products_.get(), kTileKeys});
    RunSoftmaxGradient({.tile = scores_.tile(),
                        .log_sum_exp = log_sum_exp_.get(),
                        .delta = delta_.get(),
                        .products = products_.get()});
  }

  // Straight to the gradients: statistics.
  void AddToKeys(IndexRange keys, int64_t kv_head) {
    const ScoreTile<S>& scores = scores_.tile();
    const BlasShape shape = {scores.width, tiling_.d, scores.rows};
    const auto target = [&](const TensorView& gradient) -> BlasResult<S> {
      return {HeadsOf(gradient, keys.begin, kv_head).template row<S>(0),
              gradient.strides()[0]};
    };
    Multiply<S>(shape, 1, {scores.scores, kTileKeys, true},
                {output_gradient_.get(), tiling_.d}, 1,
                target(gradients_.value_gradient));
    Multiply<S>(shape, static_cast<S>(block_.scale),
                {products_.get(), kTileKeys, true}, {query_.get(), tiling_.d},
                1, target(gradients_.key_gradient));
  }

  void AddToQueries(IndexRange keys, const Head<S>& key, bool begun) {
    const ScoreTile<S>& scores = scores_.tile();
    Multiply<S>({scores.rows, tiling_.d, scores.width},
                static_cast<S>(block_.scale), {products_.get(), kTileKeys},
                {key.row(keys.begin), key.stride()}, begun ? 1 : 0,
                {query_gradient_.get(), tiling_.d});
  }

  const AttentionBlock& block_;
  const AttentionGradients& gradients_;
  const Tiling& tiling_;
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
void ReadHeads(const ConstTensorView& x, IndexRange tokens, IndexRange heads,
               S* rows) {
  const int64_t d = x.shape()[2];
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    RunElementwise({.step = ElementwiseJob::Step::kCast,
                    .x_type = x.dtype(),
                    .y_type = kDTypeOf<S>,
                    .rows = {0, heads.size()},
                    .n = d,
                    .x = HeadsOf(x, token, heads.begin),
                    .y = RowsView(reinterpret_cast<std::byte*>(rows), d)});
    rows += heads.size() * d;
  }
}

template <typename S>
void WriteHeads(Writing writing, const S* rows, IndexRange tokens,
                IndexRange heads, const TensorView& x) {
  const int64_t d = x.shape()[2];
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    RunElementwise(
        {.step = writing == Writing::kAdd ? ElementwiseJob::Step::kAdd
                                          : ElementwiseJob::Step::kCast,
         .x_type = x.dtype(),
         .y_type = x.dtype(),
         .rows = {0, heads.size()},
         .n = d,
         .x = ConstRowsView(reinterpret_cast<const std::byte*>(rows), d),
         .y = HeadsOf(x, token, heads.begin)});
    rows += heads.size() * d;
  }
}

template <typename S>
Head<S>::Head(const ConstTensorView& x, int64_t head) {
  const int64_t tokens = x.shape()[0], d = x.shape()[2];
  stride_ = x.strides()[0];
  const bool fits = stride_ >= d && stride_ <= kLargestBlasSize;
  if (x.dtype() == kDTypeOf<S> && (tokens <= 1 || fits)) {
    data_ = HeadsOf(x, 0, head).template row<S>(0);
    return;
  }
  copy_ = Scratch<S>(tokens * d);
  ReadHeads(x, {0, tokens}, {head, head + 1}, copy_.get());
  data_ = copy_.get();
  stride_ = d;
}

template void ReadHeads(const ConstTensorView&, IndexRange, IndexRange, float*);
template void ReadHeads(const ConstTensorView&, IndexRange, IndexRange,
                        double*);
template void WriteHeads(Writing, const float*, IndexRange, IndexRange,
                         const TensorView&);
template void WriteHeads(Writing, const double*, IndexRange, IndexRange,
                         const TensorView&);
template class Head<float>;
template class Head<double>;

Tiling::Tiling(const AttentionBlock& block)
    : queries(block.query.shape()[0]),
      keys(block.key.shape()[0]),
      heads(block.query.shape()[1]),
      kv_heads(block.key.shape()[1]),
      group(kv_heads == 0 ? 0 : heads / kv_heads),
      d(block.query.shape()[2]),
      is_causal(block.kind == BlockKind::kCausal),
      tile_queries(std::clamp<int64_t>(kTileRows / std::max<int64_t>(group, 1),
                                       1, std::max<int64_t>(queries, 1))) {}

IndexRange Tiling::QueriesFrom(int64_t begin) const {
  return {begin, std::min(queries, begin + tile_queries)};
}

IndexRange Tiling::KeysFrom(int64_t begin, IndexRange queries) const {
  const int64_t end = std::min(begin + kTileKeys, SeenBy(queries.end - 1));
  return {begin, std::max(begin, end)};
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
void Scores<S>::Compute(double scale, IndexRange keys, IndexRange queries,
                        const S* rows, const Head<S>& key) {
  tile_.rows = queries.size() * tiling_.group;
  tile_.width = keys.size();
  Multiply<S>({tile_.rows, tile_.width, tiling_.d}, static_cast<S>(scale),
              {rows, tiling_.d},
              {key.row(keys.begin), key.stride(), /*transposed=*/true}, 0,
              {scores_.get(), kTileKeys});
  for (int64_t row = 0; row < tile_.rows; ++row) {
    const int64_t seen = tiling_.SeenBy(queries.begin + row / tiling_.group);
    counts_[row] = std::clamp<int64_t>(seen - keys.begin, 0, keys.size());
  }
}

template class Scores<float>;
template class Scores<double>;

namespace {

// One key head of one sequence, for some of its tiles of queries: views of
// [tokens, heads, d]. S is the type of the statistics.
template <typename S>
void RunAttend(const AttentionBlock& block, const AttentionState& state,
               int64_t kv_head, IndexRange all_queries) {
  const Tiling tiling(block);
  Scores<S> scores(tiling);
  RunningState<S> running(tiling, state);
  const auto query = Scratch<S>(tiling.tile_queries * tiling.group * tiling.d);
  const Head<S> key(block.key, kv_head);
  const Head<S> value(block.value, kv_head);
  const IndexRange heads = tiling.HeadsOf(kv_head);
  for (int64_t at = all_queries.begin; at < all_queries.end;
       at += tiling.tile_queries) {
    const IndexRange queries = tiling.QueriesFrom(at);
    bool begun = false;
    for (int64_t first = 0; first < tiling.keys; first += kTileKeys) {
      const IndexRange keys = tiling.KeysFrom(first, queries);
      if (keys.size() == 0) break;
      if (!begun) {
        ReadHeads<S>(block.query, queries, heads, query.get());
        running.Begin(queries, heads);
        begun = true;
      }
      scores.Compute(block.scale, keys, queries, query.get(), key);
      running.Merge(scores.tile(), value.row(keys.begin), value.stride());
    }
    if (begun) running.End();
  }
}

template <typename S>
void RunAttendGradient(const AttentionBlock& block,
                       const AttentionGradients& gradients, int64_t kv_head) {
  const Tiling tiling(block);
  QueryTile<S> tile(block, gradients, tiling);
  const Head<S> key(block.key, kv_head);
  const Head<S> value(block.value, kv_head);
  for (int64_t at = 0; at < tiling.queries; at += tiling.tile_queries) {
    tile.Run(tiling.QueriesFrom(at), kv_head, key, value);
  }
}

// The sequence of that index. The views were checked.
template <typename Byte>
BasicTensorView<Byte> SequenceOf(const BasicTensorView<Byte>& x,
                                 int64_t index) {
  return *x.Select(0, index);
}

AttentionBlock SequenceOf(const AttentionBlock& block, int64_t index) {
  return {SequenceOf(block.query, index), SequenceOf(block.key, index),
          SequenceOf(block.value, index), block.kind, block.scale};
}

}  // namespace

void Attend(ThreadPool& pool, const AttentionBlock& block,
            const AttentionState& state) {
  // Tiles of a part; keys and values of bf16 are converted for each part.
  constexpr int64_t kTilesOfPart = 8;
  if (block.query.element_count() == 0) return;
  const Tiling tiling(SequenceOf(block, 0));
  const int64_t queries_of_part = kTilesOfPart * tiling.tile_queries;
  const int64_t parts =
      (tiling.queries + queries_of_part - 1) / queries_of_part;
  const int64_t heads = tiling.kv_heads;
  pool.Run(block.query.shape()[0] * heads * parts, [&](int64_t i) {
    const int64_t sequence = i / (heads * parts), head = i / parts % heads;
    const int64_t begin = i % parts * queries_of_part;
    const IndexRange queries = {
        begin, std::min(tiling.queries, begin + queries_of_part)};
    const AttentionBlock part = SequenceOf(block, sequence);
    const AttentionState part_state = {SequenceOf(state.output, sequence),
                                       SequenceOf(state.log_sum_exp, sequence)};
    block.query.dtype() == DType::kF64
        ? RunAttend<double>(part, part_state, head, queries)
        : RunAttend<float>(part, part_state, head, queries);
  });
}

void AttendGradient(ThreadPool& pool, const AttentionBlock& block,
                    const AttentionGradients& gradients) {
  const int64_t heads = block.key.shape()[2];
  pool.Run(block.query.shape()[0] * heads, [&](int64_t i) {
    const int64_t sequence = i / heads, head = i % heads;
    const AttentionBlock part = SequenceOf(block, sequence);
    const AttentionGradients part_gradients = {
        SequenceOf(gradients.output_gradient, sequence),
        SequenceOf(gradients.output, sequence),
        SequenceOf(gradients.log_sum_exp, sequence),
        SequenceOf(gradients.delta, sequence),
        SequenceOf(gradients.query_gradient, sequence),
        SequenceOf(gradients.key_gradient, sequence),
        SequenceOf(gradients.value_gradient, sequence)};
    block.query.dtype() == DType::kF64
        ? RunAttendGradient<double>(part, part_gradients, head)
        : RunAttendGradient<float>(part, part_gradients, head);
  });
}

}  // namespace tessera::tensor_parallel::cpu
