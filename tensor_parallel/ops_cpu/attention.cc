#include "tensor_parallel/ops_cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/small_float.h"
#include "base/os/thread_pool.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/ops_cpu/onednn_gemm.h"
#include "tensor_parallel/sharding/partition.h"

// T is the type of the factors of products, and S the type of statistics.
namespace tessera::tensor_parallel::cpu {

namespace {

// The products of a tile take 128 KiB in f32, so that they stay in the
// second-level cache.
constexpr int64_t kTileKeys = 256;
constexpr int64_t kTileRows = 128;

// Uninitialised values, possibly none.
template <typename T>
std::unique_ptr<T[]> Scratch(int64_t size) {
  return std::make_unique_for_overwrite<T[]>(static_cast<size_t>(size));
}

// The rows of one head, from token `token` on.
template <typename Byte>
BasicRowsView<Byte> TokensOf(const BasicTensorView<Byte>& x, int64_t token,
                             int64_t head) {
  const int64_t offset = token * x.strides()[0] + head * x.strides()[1];
  return BasicRowsView<Byte>(x.data() + offset * SizeInBytes(x.dtype()),
                             x.strides()[0]);
}

// The row of a token in statistics of [tokens, heads].
template <typename S, typename Byte>
auto StatisticsAt(const BasicTensorView<Byte>& x, int64_t token) {
  return BasicRowsView<Byte>(x).template row<S>(token);
}

// Copies to `rows`: for each token its heads, d values each.
template <typename T>
void ReadHeads(const ConstTensorView& x, IndexRange tokens, IndexRange heads,
               T* rows) {
  const int64_t d = x.shape()[2];
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    RunElementwise(
        {.step = ElementwiseJob::Step::kCast,
         .x_type = x.dtype(),
         .y_type = kDTypeOf<T>,
         .rows = {0, tokens.size()},
         .n = d,
         .x = TokensOf(x, tokens.begin, head),
         .y = RowsView(reinterpret_cast<std::byte*>(rows), heads.size() * d)});
    rows += d;
  }
}

// The inverse for statistics: x = rows, which may round, or x += rows.
enum class Writing { kSet, kAdd };
template <typename S>
void WriteHeads(Writing writing, const S* rows, IndexRange tokens,
                IndexRange heads, const TensorView& x) {
  const int64_t d = x.shape()[2];
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    RunElementwise({.step = writing == Writing::kAdd
                                ? ElementwiseJob::Step::kAdd
                                : ElementwiseJob::Step::kCast,
                    .x_type = kDTypeOf<S>,
                    .y_type = x.dtype(),
                    .rows = {0, tokens.size()},
                    .n = d,
                    .x = ConstRowsView(reinterpret_cast<const std::byte*>(rows),
                                       heads.size() * d),
                    .y = TokensOf(x, tokens.begin, head)});
    rows += d;
  }
}

// All tokens of one head, as a matrix: in place if it has type T and BLAS
// accepts its stride, otherwise a copy. (Copies without gaps were not faster,
// although heads are a power of two apart.)
template <typename T>
class Head {
 public:
  Head(const ConstTensorView& x, int64_t head) {
    const int64_t tokens = x.shape()[0], d = x.shape()[2];
    stride_ = x.strides()[0];
    const bool fits = stride_ >= d && stride_ <= kLargestBlasSize;
    if (x.dtype() == kDTypeOf<T> && (tokens <= 1 || fits)) {
      data_ = TokensOf(x, 0, head).template row<T>(0);
      return;
    }
    copy_ = Scratch<T>(tokens * d);
    ReadHeads(x, {0, tokens}, {head, head + 1}, copy_.get());
    data_ = copy_.get();
    stride_ = d;
  }

  // The rows from that token on.
  BlasFactor<T> From(int64_t token, bool transposed = false) const {
    return {data_ + token * stride_, stride_, transposed};
  }

 private:
  std::unique_ptr<T[]> copy_;
  const T* data_;
  int64_t stride_;
};

// The sizes of the block of one sequence (views of [tokens, heads, d]) and of
// its tiles.
struct Tiling {
  explicit Tiling(const AttentionBlock& block)
      : queries(block.query.shape()[0]),
        keys(block.key.shape()[0]),
        heads(block.query.shape()[1]),
        kv_heads(block.key.shape()[1]),
        group(kv_heads == 0 ? 0 : heads / kv_heads),
        d(block.query.shape()[2]),
        is_causal(block.kind == BlockKind::kCausal),
        first_keys(
            block.first_keys.has_value()
                ? reinterpret_cast<const int64_t*>(block.first_keys->data())
                : nullptr),
        tile_queries(
            std::clamp<int64_t>(kTileRows / std::max<int64_t>(group, 1), 1,
                                std::max<int64_t>(queries, 1))) {}

  // The query heads of a key head.
  IndexRange HeadsOf(int64_t kv_head) const {
    return {kv_head * group, (kv_head + 1) * group};
  }
  // The tile of queries from `begin` on.
  IndexRange QueriesFrom(int64_t begin) const {
    return {begin, std::min(queries, begin + tile_queries)};
  }
  // The number of leading keys that the causal mask, if any, leaves visible to
  // a query; it does not decrease from query to query.
  int64_t SeenBy(int64_t query) const {
    return is_causal ? std::clamp<int64_t>(query + 1 + keys - queries, 0, keys)
                     : keys;
  }
  // The number of leading keys that first_keys hides from a query; it does not
  // decrease from query to query.
  int64_t HiddenFrom(int64_t query) const {
    return first_keys == nullptr
               ? 0
               : std::clamp<int64_t>(first_keys[query], 0, keys);
  }
  // The begin of the first tile of keys that may be visible to a query of
  // `queries`.
  int64_t FirstTile(IndexRange queries) const {
    return HiddenFrom(queries.begin) / kTileKeys * kTileKeys;
  }
  // The tile of keys from `begin` on, clipped to those that the last of
  // `queries` sees.
  IndexRange KeysFrom(int64_t begin, IndexRange queries) const {
    const int64_t end = std::min(begin + kTileKeys, SeenBy(queries.end - 1));
    return {begin, std::max(begin, end)};
  }
  int64_t LargestRows() const { return tile_queries * group; }

  int64_t queries;
  int64_t keys;
  int64_t heads;
  int64_t kv_heads;
  int64_t group;  // heads / kv_heads
  int64_t d;
  bool is_causal;
  const int64_t* first_keys;  // By query; null: none are hidden.
  int64_t tile_queries;       // Rows of a tile are queries times group.
};

// The scores of a tile of queries (one row for each query and head) with a tile
// of keys.
template <typename T>
class Scores {
 public:
  Scores(const Tiling& tiling, const AttentionBlock& block)
      : tiling_(tiling),
        scale_(block.scale),
        counts_(tiling.LargestRows()),
        products_(Scratch<StatisticOf<T>>(tiling.LargestRows() * kTileKeys)) {
    tile_ = {.stride = kTileKeys,
             .scale = static_cast<StatisticOf<T>>(block.cap == 0 ? scale_ : 1),
             .cap = static_cast<StatisticOf<T>>(block.cap),
             .slope = static_cast<StatisticOf<T>>(scale_),
             .counts = counts_.data(),
             .products = products_.get()};
    if constexpr (std::is_same_v<T, StatisticOf<T>>) {
      tile_.weights = products_.get();
    } else {
      weights_ = Scratch<T>(tiling.LargestRows() * kTileKeys);
      tile_.weights = weights_.get();
    }
  }

  // The products of `rows` [queries * group, d] and the keys.
  void Compute(IndexRange keys, IndexRange queries, const T* rows,
               const Head<T>& key) {
    tile_.rows = queries.size() * tiling_.group;
    tile_.width = keys.size();
    Multiply<T>({tile_.rows, tile_.width, tiling_.d}, 1, {rows, tiling_.d},
                key.From(keys.begin, /*transposed=*/true), 0,
                {products_.get(), kTileKeys});
    if (tile_.cap != 0) Cap();
    for (int64_t row = 0; row < tile_.rows; ++row) {
      const int64_t seen = tiling_.SeenBy(queries.begin + row / tiling_.group);
      counts_[row] = std::clamp<int64_t>(seen - keys.begin, 0, keys.size());
    }
    if (tiling_.first_keys != nullptr) Hide(keys, queries);
  }

  const ScoreTile<T>& tile() const { return tile_; }

  // Valid after the softmax or its gradient has overwritten the scores.
  BlasFactor<T> weights(bool transposed = false) const {
    return {tile_.weights, kTileKeys, transposed};
  }

 private:
  void Cap() {
    RunElementwise({.step = ElementwiseJob::Step::kSoftCap,
                    .x_type = kDTypeOf<StatisticOf<T>>,
                    .y_type = kDTypeOf<StatisticOf<T>>,
                    .rows = {0, tile_.rows},
                    .n = tile_.width,
                    .factor = scale_,
                    .cap = tile_.cap,
                    .y = RowsView(reinterpret_cast<std::byte*>(products_.get()),
                                  kTileKeys)});
  }
  // Keys before the first one that a query sees get no weight.
  void Hide(IndexRange keys, IndexRange queries) {
    for (int64_t row = 0; row < tile_.rows; ++row) {
      const int64_t query = queries.begin + row / tiling_.group;
      const int64_t hidden = tiling_.HiddenFrom(query) - keys.begin;
      if (hidden <= 0) continue;
      if (hidden >= counts_[row]) {
        counts_[row] = 0;
        continue;
      }
      std::fill_n(products_.get() + row * kTileKeys, hidden,
                  -std::numeric_limits<StatisticOf<T>>::infinity());
    }
  }

  const Tiling& tiling_;
  const double scale_;
  std::vector<int64_t> counts_;
  std::unique_ptr<StatisticOf<T>[]> products_;
  std::unique_ptr<T[]> weights_;  // Null if they replace the products.
  ScoreTile<T> tile_;
};

// The running softmax of a tile of queries: earlier keys count as one key whose
// score is their log_sum_exp and whose value is their output.
template <typename T>
class RunningState {
 public:
  using S = StatisticOf<T>;

  RunningState(const Tiling& tiling, const AttentionState& state, bool is_whole)
      : tiling_(tiling),
        state_(state),
        is_whole_(is_whole),
        largest_(Scratch<S>(tiling.LargestRows())),
        sum_(Scratch<S>(tiling.LargestRows())),
        output_(Scratch<S>(tiling.LargestRows() * tiling.d)) {}

  void Begin(IndexRange queries, IndexRange heads) {
    queries_ = queries;
    heads_ = heads;
    if (is_whole_) {
      std::fill_n(output_.get(), rows() * tiling_.d, S{0});
    } else {
      ReadHeads<S>(state_.output, queries, heads, output_.get());
    }
    for (int64_t i = 0; i < rows(); ++i) {
      if (is_whole_) LogSumExp(i) = kNothing;
      largest_[i] = LogSumExp(i);
      sum_[i] = largest_[i] == kNothing ? S{0} : S{1};
    }
  }

  // Merges the scores of a tile with the values of its keys.
  void Merge(const Scores<T>& scores, const BlasFactor<T>& values) {
    const ScoreTile<T>& tile = scores.tile();
    RunSoftmax<T>({.tile = tile,
                   .largest = largest_.get(),
                   .sum = sum_.get(),
                   .output = output_.get(),
                   .d = tiling_.d});
    Multiply<T>({tile.rows, tiling_.d, tile.width}, 1, scores.weights(), values,
                1, {output_.get(), tiling_.d});
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
  const bool is_whole_;
  IndexRange queries_;
  IndexRange heads_;
  std::unique_ptr<S[]> largest_;
  std::unique_ptr<S[]> sum_;
  std::unique_ptr<S[]> output_;
};

// Computes the gradients of a tile of queries with one tile of keys after the
// other.
//   p = exp(scale q k^T - log_sum_exp), ds = scale p (do v^T - delta)
//   dv += p^T do, dk += ds^T q, dq += ds k
template <typename T>
class QueryTile {
 public:
  using S = StatisticOf<T>;

  QueryTile(const AttentionBlock& block, const AttentionGradients& gradients,
            const Tiling& tiling)
      : block_(block),
        gradients_(gradients),
        tiling_(tiling),
        scores_(tiling, block),
        query_(Scratch<T>(tiling.LargestRows() * tiling.d)),
        output_gradient_(Scratch<T>(tiling.LargestRows() * tiling.d)),
        query_gradient_(Scratch<S>(tiling.LargestRows() * tiling.d)),
        log_sum_exp_(Scratch<S>(tiling.LargestRows())),
        delta_(Scratch<S>(tiling.LargestRows())),
        weight_gradients_(Scratch<S>(tiling.LargestRows() * kTileKeys)) {
    if constexpr (std::is_same_v<T, S>) {
      product_gradients_ = weight_gradients_.get();
    } else {
      rounded_ = Scratch<T>(tiling.LargestRows() * kTileKeys);
      product_gradients_ = rounded_.get();
    }
  }

  void Run(IndexRange queries, int64_t kv_head, const Head<T>& key,
           const Head<T>& value) {
    const IndexRange heads = tiling_.HeadsOf(kv_head);
    bool begun = false;
    for (int64_t at = tiling_.FirstTile(queries); at < tiling_.keys;
         at += kTileKeys) {
      const IndexRange keys = tiling_.KeysFrom(at, queries);
      if (keys.size() == 0) break;
      if (!begun) Read(queries, heads);
      ScoreGradients(keys, queries, key, value);
      AddToKeys(keys, kv_head);
      AddToQueries(keys, key, begun);
      begun = true;
    }
    if (block_.is_whole && !begun) {
      std::fill_n(query_gradient_.get(),
                  queries.size() * heads.size() * tiling_.d, S{0});
    }
    if (block_.is_whole || begun) {
      WriteHeads<S>(block_.is_whole ? Writing::kSet : Writing::kAdd,
                    query_gradient_.get(), queries, heads,
                    gradients_.query_gradient);
    }
  }

 private:
  void Read(IndexRange queries, IndexRange heads) {
    ReadHeads<T>(block_.query, queries, heads, query_.get());
    ReadHeads<T>(gradients_.output_gradient, queries, heads,
                 output_gradient_.get());
    int64_t row = 0;
    for (int64_t query = queries.begin; query < queries.end; ++query) {
      const S* const log_sum_exp =
          StatisticsAt<S>(gradients_.log_sum_exp, query);
      const S* const delta = StatisticsAt<S>(*gradients_.delta, query);
      for (int64_t head = heads.begin; head < heads.end; ++head, ++row) {
        log_sum_exp_[row] = log_sum_exp[head];
        delta_[row] = delta[head];
      }
    }
  }

  void ScoreGradients(IndexRange keys, IndexRange queries, const Head<T>& key,
                      const Head<T>& value) {
    scores_.Compute(keys, queries, query_.get(), key);
    Multiply<T>({scores_.tile().rows, keys.size(), tiling_.d}, 1,
                {output_gradient_.get(), tiling_.d},
                value.From(keys.begin, /*transposed=*/true), 0,
                {weight_gradients_.get(), kTileKeys});
    RunSoftmaxGradient<T>({.tile = scores_.tile(),
                           .log_sum_exp = log_sum_exp_.get(),
                           .delta = delta_.get(),
                           .weight_gradients = weight_gradients_.get(),
                           .product_gradients = product_gradients_});
  }

  // Adds directly to the gradients, which have the type of statistics.
  void AddToKeys(IndexRange keys, int64_t kv_head) {
    const ScoreTile<T>& tile = scores_.tile();
    const BlasShape shape = {tile.width, tiling_.d, tile.rows};
    const auto target = [&](const TensorView& gradient) -> BlasResult<S> {
      return {TokensOf(gradient, keys.begin, kv_head).template row<S>(0),
              gradient.strides()[0]};
    };
    Multiply<T>(shape, 1, scores_.weights(/*transposed=*/true),
                {output_gradient_.get(), tiling_.d}, 1,
                target(gradients_.value_gradient));
    Multiply<T>(shape, 1, {product_gradients_, kTileKeys, true},
                {query_.get(), tiling_.d}, 1, target(gradients_.key_gradient));
  }

  void AddToQueries(IndexRange keys, const Head<T>& key, bool begun) {
    const ScoreTile<T>& tile = scores_.tile();
    Multiply<T>({tile.rows, tiling_.d, tile.width}, 1,
                {product_gradients_, kTileKeys}, key.From(keys.begin),
                begun ? 1 : 0, {query_gradient_.get(), tiling_.d});
  }

  const AttentionBlock& block_;
  const AttentionGradients& gradients_;
  const Tiling& tiling_;
  Scores<T> scores_;
  std::unique_ptr<T[]> query_;
  std::unique_ptr<T[]> output_gradient_;
  std::unique_ptr<S[]> query_gradient_;
  std::unique_ptr<S[]> log_sum_exp_;
  std::unique_ptr<S[]> delta_;
  std::unique_ptr<S[]> weight_gradients_;
  std::unique_ptr<T[]> rounded_;  // Null if T is S.
  T* product_gradients_;
};

// One key head of one sequence, for some of its tiles of queries.
template <typename T>
void RunAttend(const AttentionBlock& block, const AttentionState& state,
               int64_t kv_head, IndexRange all_queries) {
  const Tiling tiling(block);
  Scores<T> scores(tiling, block);
  RunningState<T> running(tiling, state, block.is_whole);
  const auto query = Scratch<T>(tiling.LargestRows() * tiling.d);
  const Head<T> key(block.key, kv_head);
  const Head<T> value(block.value, kv_head);
  const IndexRange heads = tiling.HeadsOf(kv_head);
  for (int64_t at = all_queries.begin; at < all_queries.end;
       at += tiling.tile_queries) {
    const IndexRange queries = tiling.QueriesFrom(at);
    bool begun = false;
    for (int64_t first = tiling.FirstTile(queries); first < tiling.keys;
         first += kTileKeys) {
      const IndexRange keys = tiling.KeysFrom(first, queries);
      if (keys.size() == 0) break;
      if (!begun) {
        ReadHeads<T>(block.query, queries, heads, query.get());
        running.Begin(queries, heads);
        begun = true;
      }
      scores.Compute(keys, queries, query.get(), key);
      running.Merge(scores, value.From(keys.begin));
    }
    if (block.is_whole && !begun) {
      running.Begin(queries, heads);
      begun = true;
    }
    if (begun) running.End();
  }
}

// Raises largest[i] to the largest score of head i of those that share one key
// head, for some of its tiles of queries of one sequence.
template <typename T>
void RunMaxScores(const AttentionBlock& block, int64_t kv_head,
                  IndexRange all_queries, double* largest) {
  const Tiling tiling(block);
  Scores<T> scores(tiling, block);
  const auto query = Scratch<T>(tiling.LargestRows() * tiling.d);
  const Head<T> key(block.key, kv_head);
  for (int64_t at = all_queries.begin; at < all_queries.end;
       at += tiling.tile_queries) {
    const IndexRange queries = tiling.QueriesFrom(at);
    ReadHeads<T>(block.query, queries, tiling.HeadsOf(kv_head), query.get());
    for (int64_t first = tiling.FirstTile(queries); first < tiling.keys;
         first += kTileKeys) {
      const IndexRange keys = tiling.KeysFrom(first, queries);
      if (keys.size() == 0) break;
      scores.Compute(keys, queries, query.get(), key);
      const ScoreTile<T>& tile = scores.tile();
      for (int64_t row = 0; row < tile.rows; ++row) {
        double& of_head = largest[row % tiling.group];
        for (int64_t i = 0; i < tile.counts[row]; ++i) {
          const double score =
              tile.products[row * tile.stride + i] * tile.scale;
          if (score > of_head) of_head = score;
        }
      }
    }
  }
}

// The sums of a head's gradients of keys or values, [keys, heads, d] of which
// one head exists.
template <typename S>
class KeySums {
 public:
  explicit KeySums(const Tiling& tiling)
      : keys_(tiling.keys), sums_(Scratch<S>(keys_ * tiling.d)) {
    std::fill_n(sums_.get(), keys_ * tiling.d, S{0});
  }

  // As the gradient of all heads: `kv_head` is the one that exists.
  TensorView ViewFor(const Tiling& tiling) const {
    const size_t bytes = static_cast<size_t>(keys_ * tiling.d) * sizeof(S);
    return *TensorView::Create(
        {reinterpret_cast<std::byte*>(sums_.get()), bytes}, kDTypeOf<S>,
        *Layout::Strided({{keys_, tiling.kv_heads, tiling.d}},
                         {{tiling.d, 0, 1}}));
  }
  void Store(int64_t kv_head, const TensorView& gradient) const {
    WriteHeads<S>(Writing::kSet, sums_.get(), {0, keys_},
                  {kv_head, kv_head + 1}, gradient);
  }

 private:
  int64_t keys_;
  std::unique_ptr<S[]> sums_;
};

template <typename T>
void RunAttendGradient(const AttentionBlock& block,
                       const AttentionGradients& all, int64_t kv_head) {
  using S = StatisticOf<T>;
  const Tiling tiling(block);
  std::optional<KeySums<S>> key_sums, value_sums;
  AttentionGradients gradients = all;
  if (block.is_whole) {
    gradients.key_gradient = key_sums.emplace(tiling).ViewFor(tiling);
    gradients.value_gradient = value_sums.emplace(tiling).ViewFor(tiling);
  }
  QueryTile<T> tile(block, gradients, tiling);
  const Head<T> key(block.key, kv_head);
  const Head<T> value(block.value, kv_head);
  for (int64_t at = 0; at < tiling.queries; at += tiling.tile_queries) {
    tile.Run(tiling.QueriesFrom(at), kv_head, key, value);
  }
  if (!block.is_whole) return;
  key_sums->Store(kv_head, all.key_gradient);
  value_sums->Store(kv_head, all.value_gradient);
}

// Calls run(std::type_identity<T>) for the type of the factors.
template <typename Run>
void WithFactors(const AttentionBlock& part, const Tiling& tiling,
                 const Run& run) {
  // With fewer rows each key is reused so rarely that the products are
  // memory-bound, and decoding would compile a product for each number of keys.
  constexpr int64_t kLeastRows = 16;
  const DType dtype = part.query.dtype();
  if (dtype == DType::kF64) return run(std::type_identity<double>());
  if (dtype == DType::kBF16 && OneDnnMultipliesBF16() &&
      tiling.LargestRows() >= kLeastRows) {
    return run(std::type_identity<BF16>());
  }
  run(std::type_identity<float>());
}

// The sequence of that index. The views were checked.
template <typename Byte>
BasicTensorView<Byte> SequenceOf(const BasicTensorView<Byte>& x,
                                 int64_t index) {
  return *x.Select(0, index);
}

AttentionBlock SequenceOf(const AttentionBlock& block, int64_t index) {
  AttentionBlock one = {
      SequenceOf(block.query, index), SequenceOf(block.key, index),
      SequenceOf(block.value, index), block.kind, block.scale};
  one.cap = block.cap;
  one.is_whole = block.is_whole;
  if (block.first_keys.has_value()) {
    one.first_keys = SequenceOf(*block.first_keys, index);
  }
  return one;
}

// The work of Attend in parts: some tiles of queries of a key head of a
// sequence.
class Parts {
 public:
  explicit Parts(const AttentionBlock& block)
      : sequences_(block.query.shape()[0]),
        tiling_(SequenceOf(block, 0)),
        queries_of_part_(kTilesOfPart * tiling_.tile_queries),
        of_head_((tiling_.queries + queries_of_part_ - 1) / queries_of_part_) {}

  const Tiling& tiling() const { return tiling_; }
  int64_t count() const { return sequences_ * tiling_.kv_heads * of_head_; }
  int64_t SequenceAt(int64_t part) const {
    return part / of_head_ / tiling_.kv_heads;
  }
  int64_t KvHeadAt(int64_t part) const {
    return part / of_head_ % tiling_.kv_heads;
  }
  IndexRange QueriesAt(int64_t part) const {
    const int64_t begin = part % of_head_ * queries_of_part_;
    return {begin, std::min(tiling_.queries, begin + queries_of_part_)};
  }

 private:
  // Keys and values are converted once per part, if at all.
  static constexpr int64_t kTilesOfPart = 8;

  const int64_t sequences_;
  const Tiling tiling_;
  const int64_t queries_of_part_;
  const int64_t of_head_;
};

}  // namespace

void Attend(ThreadPool& pool, const AttentionBlock& block,
            const AttentionState& state) {
  if (block.query.element_count() == 0) return;
  const Parts parts(block);
  pool.Run(parts.count(), [&](int64_t i) {
    const int64_t sequence = parts.SequenceAt(i);
    const AttentionBlock part = SequenceOf(block, sequence);
    const AttentionState part_state = {SequenceOf(state.output, sequence),
                                       SequenceOf(state.log_sum_exp, sequence)};
    WithFactors(part, parts.tiling(), [&]<typename T>(std::type_identity<T>) {
      RunAttend<T>(part, part_state, parts.KvHeadAt(i), parts.QueriesAt(i));
    });
  });
}

void RaiseMaxScores(ThreadPool& pool, const AttentionBlock& block,
                    const TensorView& max_scores) {
  const Parts parts(block);
  const int64_t group = parts.tiling().group;
  // By part, and head of its key head.
  std::vector<double> largest(static_cast<size_t>(parts.count() * group),
                              -std::numeric_limits<double>::infinity());
  pool.Run(parts.count(), [&](int64_t i) {
    const AttentionBlock part = SequenceOf(block, parts.SequenceAt(i));
    WithFactors(part, parts.tiling(), [&]<typename T>(std::type_identity<T>) {
      RunMaxScores<T>(part, parts.KvHeadAt(i), parts.QueriesAt(i),
                      largest.data() + i * group);
    });
  });
  const auto raise = [&]<typename S>(S* scores) {
    for (int64_t i = 0; i < parts.count() * group; ++i) {
      S& score = scores[parts.KvHeadAt(i / group) * group + i % group];
      score = std::max(score, static_cast<S>(largest[static_cast<size_t>(i)]));
    }
  };
  max_scores.dtype() == DType::kF64
      ? raise(reinterpret_cast<double*>(max_scores.data()))
      : raise(reinterpret_cast<float*>(max_scores.data()));
}

void AttendGradient(ThreadPool& pool, const AttentionBlock& block,
                    const AttentionGradients& gradients) {
  if (block.query.element_count() == 0) return;
  const Tiling tiling(SequenceOf(block, 0));
  const int64_t heads = tiling.kv_heads;
  pool.Run(block.query.shape()[0] * heads, [&](int64_t i) {
    const int64_t sequence = i / heads, head = i % heads;
    const AttentionBlock part = SequenceOf(block, sequence);
    const AttentionGradients part_gradients = {
        SequenceOf(gradients.output_gradient, sequence),
        SequenceOf(gradients.output, sequence),
        SequenceOf(gradients.log_sum_exp, sequence),
        SequenceOf(*gradients.delta, sequence),
        SequenceOf(gradients.query_gradient, sequence),
        SequenceOf(gradients.key_gradient, sequence),
        SequenceOf(gradients.value_gradient, sequence)};
    WithFactors(part, tiling, [&]<typename T>(std::type_identity<T>) {
      RunAttendGradient<T>(part, part_gradients, head);
    });
  });
}

}  // namespace tessera::tensor_parallel::cpu
