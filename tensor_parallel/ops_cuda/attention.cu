#include <bit>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/four.h"
#include "base/cuda/kernel.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/attention.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

using ::tessera::TESSERA_KERNELS::Four;
using ::tessera::TESSERA_KERNELS::Launch;

// Queries and keys of a tile. A thread has 4 x 4 elements of a product of a
// tile: rows from 4 * (thread / 16), columns from 4 * (thread % 16).
constexpr int kTile = 64;
constexpr int kThreads = 256;
// The distance of rows of a tile in shared memory, a multiple of 16 bytes that
// avoids bank conflicts within a warp.
constexpr int kRow = kTile + 4;
constexpr uint32_t kAllLanes = 0xffffffff;

// The length of a product's slices in shared memory.
template <typename S>
constexpr int kSlice = sizeof(S) == 8 ? 8 : 16;
// Parts of kTile columns of a head whose sums a thread keeps in registers.
template <typename S>
constexpr int kParts = sizeof(S) == 8 ? 1 : 2;

// [sequences, tokens, heads, d], or [sequences, tokens, heads]; strides are in
// elements.
template <typename T>
struct Operand {
  T* data;
  int64_t sequence_stride, token_stride, head_stride;

  __device__ T* At(int64_t sequence, int64_t head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
};

struct Sizes {
  int64_t queries, keys;
  int64_t heads, group;  // Query heads; those of one key head.
  int64_t d;
  bool is_causal;
  // [sequences, queries] with a stride between rows; null: no key is hidden.
  const int64_t* first_keys;
  int64_t first_keys_stride;
  bool is_whole;  // AttentionBlock::is_whole.

  // The keys [0, n) of the sequence are hidden from query i and from later
  // queries.
  __device__ int64_t HiddenFrom(int64_t sequence, int64_t i) const {
    if (first_keys == nullptr) return 0;
    const int64_t hidden = first_keys[sequence * first_keys_stride + i];
    return hidden < 0 ? 0 : hidden < keys ? hidden : keys;
  }

  // Query i sees the keys [0, n).
  __device__ int64_t SeenBy(int64_t i) const {
    const int64_t seen = is_causal ? i + keys - queries + 1 : keys;
    return seen < 0 ? 0 : seen < keys ? seen : keys;
  }
};

__device__ int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ int FirstRow() { return static_cast<int>(threadIdx.x) / 16 * 4; }
__device__ int FirstColumn() { return static_cast<int>(threadIdx.x) % 16 * 4; }

// A thread's part of a product of tiles.
template <typename S>
struct Square {
  S at[4][4];

  __device__ void Clear() {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) at[i][j] = 0;
    }
  }
  // Adds the products of column k of a [rows, k] and row k of b, k in
  // [0, depth): `a` and `b` are in shared memory as [k][kRow].
  __device__ void AddProduct(const S* a, const S* b, int depth) {
    const S* const rows = a + FirstRow();
    const S* const columns = b + FirstColumn();
    for (int k = 0; k < depth; ++k) {
      const auto x = *reinterpret_cast<const Four<S>*>(rows + k * kRow);
      const auto y = *reinterpret_cast<const Four<S>*>(columns + k * kRow);
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        TESSERA_UNROLL
        for (int j = 0; j < 4; ++j) {
          at[i][j] = MultiplyAdd(x.values[i], y.values[j], at[i][j]);
        }
      }
    }
  }
};

// Shared memory of a block: two slices and a tile of scores.
template <typename S>
struct Tiles {
  S* a;       // [kSlice][kRow]
  S* b;       // [kSlice][kRow]
  S* scores;  // [kTile][kRow], transposed: [column][row]
};

// slice[k][row] = x[row][begin + k] for `rows` rows and columns below d,
// otherwise 0.
template <typename S, typename T>
__device__ void LoadTransposed(const T* x, int64_t stride, int64_t rows,
                               int64_t begin, int64_t d, S* slice) {
  for (int i = threadIdx.x; i < kTile * kSlice<S>; i += kThreads) {
    const int k = i % kSlice<S>, row = i / kSlice<S>;
    const bool is_inside = row < rows && begin + k < d;
    slice[k * kRow + row] =
        is_inside ? static_cast<S>(x[row * stride + begin + k]) : S{0};
  }
}

// slice[k][column] = x[k][begin + column] for `rows` rows and columns below d.
template <typename S, typename T>
__device__ void LoadRows(const T* x, int64_t stride, int64_t rows,
                         int64_t begin, int64_t d, S* slice) {
  for (int i = threadIdx.x; i < kTile * kSlice<S>; i += kThreads) {
    const int column = i % kTile, k = i / kTile;
    const bool is_inside = k < rows && begin + column < d;
    slice[k * kRow + column] =
        is_inside ? static_cast<S>(x[k * stride + begin + column]) : S{0};
  }
}

// The dot products of rows of a and rows of b. All threads must call it.
template <typename S, typename T>
__device__ Square<S> Dots(const Tiles<S>& tiles, const T* a, int64_t a_stride,
                          int64_t a_rows, const T* b, int64_t b_stride,
                          int64_t b_rows, int64_t d) {
  Square<S> result;
  result.Clear();
  for (int64_t begin = 0; begin < d; begin += kSlice<S>) {
    __syncthreads();
    LoadTransposed(a, a_stride, a_rows, begin, d, tiles.a);
    LoadTransposed(b, b_stride, b_rows, begin, d, tiles.b);
    __syncthreads();
    result.AddProduct(tiles.a, tiles.b, kSlice<S>);
  }
  return result;
}

// sums[p] += scores times columns [column + p * kTile, ...) of the rows of x.
// All threads must call it, after tiles.scores was written.
template <typename S, typename T>
__device__ void AddWeightedRows(const Tiles<S>& tiles, const T* x,
                                int64_t stride, int64_t rows, int64_t column,
                                int64_t d, Square<S> (&sums)[kParts<S>]) {
  TESSERA_UNROLL
  for (int part = 0; part < kParts<S>; ++part) {
    const int64_t begin = column + part * kTile;
    for (int64_t first = 0; first < rows && begin < d; first += kSlice<S>) {
      __syncthreads();
      LoadRows(x + first * stride, stride, rows - first, begin, d, tiles.b);
      __syncthreads();
      sums[part].AddProduct(tiles.scores + first * kRow, tiles.b, kSlice<S>);
    }
  }
}

// Stores a thread's elements of its column j of the scores.
template <typename S>
__device__ void StoreColumn(const Tiles<S>& tiles, int j,
                            const Four<S>& elements) {
  *reinterpret_cast<Four<S>*>(tiles.scores + (FirstColumn() + j) * kRow +
                              FirstRow()) = elements;
}

template <typename S>
__device__ void StoreScores(const Tiles<S>& tiles, const Square<S>& square) {
  TESSERA_UNROLL
  for (int j = 0; j < 4; ++j) {
    Four<S> column;
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) column.values[i] = square.at[i][j];
    StoreColumn(tiles, j, column);
  }
}

// A reduction over the 16 threads that have the same rows.
template <typename S>
__device__ S RowMaximum(S value) {
  for (int distance = 8; distance > 0; distance /= 2) {
    value = Larger(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
template <typename S>
__device__ S RowSum(S value) {
  for (int distance = 8; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The work of a block of threads: a tile of a head of a sequence. Tiles with
// the most keys come first, so that the last blocks are short.
struct Place {
  int64_t first, head, sequence;

  __device__ Place(int64_t block, int64_t tiles, int64_t heads) {
    first = (tiles - 1 - block % tiles) * kTile;
    head = block / tiles % heads;
    sequence = block / tiles / heads;
  }
};

// Calls f(row, column, square row, square column) for the thread's elements of
// columns [begin, begin + kTile) that are inside [rows, d].
template <typename Functor>
__device__ void ForElements(int64_t rows, int64_t begin, int64_t d,
                            const Functor& f) {
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t row = FirstRow() + i, column = begin + FirstColumn() + j;
      if (row < rows && column < d) f(row, column, i, j);
    }
  }
}

// Adds to rows of an output, or overwrites them.
template <typename S, typename O>
__device__ void AddTo(bool overwrites, O* x, int64_t stride, int64_t rows,
                      int64_t column, int64_t d, S scale,
                      const Square<S> (&sums)[kParts<S>]) {
  TESSERA_UNROLL
  for (int part = 0; part < kParts<S>; ++part) {
    ForElements(rows, column + part * kTile, d,
                [&](int64_t row, int64_t at, int i, int j) {
                  O& element = x[row * stride + at];
                  const S sum = scale * sums[part].at[i][j];
                  element = static_cast<O>(
                      overwrites ? sum : static_cast<S>(element) + sum);
                });
  }
}

#define TESSERA_ATTENTION_TILES(S)                       \
  TESSERA_SHARED(Four<S>, slice_a, kSlice<S>* kRow / 4); \
  TESSERA_SHARED(Four<S>, slice_b, kSlice<S>* kRow / 4); \
  TESSERA_SHARED(Four<S>, all_scores, kTile* kRow / 4);  \
  const Tiles<S> tiles = {reinterpret_cast<S*>(slice_a), \
                          reinterpret_cast<S*>(slice_b), \
                          reinterpret_cast<S*>(all_scores)}

// The running softmax of a thread's rows (arXiv 1805.02867).
template <typename S>
struct RunningRows {
  S largest[4];
  S sum[4];

  // Earlier keys count as one key whose score is their log_sum_exp.
  __device__ void Begin(bool is_whole, const S* log_sum_exp, int64_t stride,
                        int64_t rows) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t row = FirstRow() + i;
      largest[i] = row < rows && !is_whole ? log_sum_exp[row * stride]
                                           : kMinusInfinity<S>;
      sum[i] = largest[i] == kMinusInfinity<S> ? S{0} : S{1};
    }
  }

  // Replaces scores by their exponentials, and rescales the previous sums.
  __device__ void Merge(Square<S>& scores, Square<S> (&output)[kParts<S>]) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      S maximum = scores.at[i][0];
      TESSERA_UNROLL
      for (int j = 1; j < 4; ++j) maximum = Larger(maximum, scores.at[i][j]);
      maximum = Larger(RowMaximum(maximum), largest[i]);
      const S shift = maximum == kMinusInfinity<S> ? S{0} : maximum;
      S total = 0;
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        scores.at[i][j] = Exp(scores.at[i][j] - shift);
        total += scores.at[i][j];
      }
      const S factor = Exp(largest[i] - shift);
      sum[i] = sum[i] * factor + RowSum(total);
      largest[i] = maximum;
      TESSERA_UNROLL
      for (int part = 0; part < kParts<S>; ++part) {
        TESSERA_UNROLL
        for (int j = 0; j < 4; ++j) output[part].at[i][j] *= factor;
      }
    }
  }
};

// Computes scores from products of queries and keys (AttentionBlock).
template <typename S>
struct Scoring {
  S scale, cap;

  __device__ S Of(S product) const {
    return cap == 0 ? product * scale : cap * Tanh(product * scale / cap);
  }
  // The slope of a score in its product, divided by the scale.
  __device__ S SlopeAt(S score) const {
    return cap == 0 ? S{1} : S{1} - (score / cap) * (score / cap);
  }
};

template <typename S>
Scoring<S> ScoringOf(const AttentionBlock& block) {
  return {static_cast<S>(block.scale), static_cast<S>(block.cap)};
}

// Scores the products of queries from `query` and keys from `key`; those of
// pairs that do not see each other become minus infinity. Rows are queries.
template <typename S>
__device__ void MaskScores(const Sizes& sizes, int64_t sequence, int64_t query,
                           int64_t key, Scoring<S> scoring, Square<S>& scores) {
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t own = query + FirstRow() + i;
    const int64_t seen = sizes.SeenBy(own) - key;
    const int64_t hidden =
        sizes.HiddenFrom(sequence, Least(own, sizes.queries - 1)) - key;
    TESSERA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t column = FirstColumn() + j;
      scores.at[i][j] = column < seen && column >= hidden
                            ? scoring.Of(scores.at[i][j])
                            : kMinusInfinity<S>;
    }
  }
}

// O is the type of the output: S, or T for a whole block.
template <typename T, typename S, typename O>
__global__ void __launch_bounds__(kThreads, 1)
    AttendKernel(Sizes sizes, Scoring<S> scoring, Operand<const T> query,
                 Operand<const T> key, Operand<const T> value,
                 Operand<O> output, Operand<S> log_sum_exp) {
  TESSERA_ATTENTION_TILES(S);
  const Place place(blockIdx.x, (sizes.queries + kTile - 1) / kTile,
                    sizes.heads);
  const int64_t first = place.first;
  const int64_t rows = Least(kTile, sizes.queries - first);
  const int64_t seen = sizes.SeenBy(first + rows - 1);
  const int64_t begin = sizes.HiddenFrom(place.sequence, first);
  if (begin >= seen && !sizes.is_whole) return;

  const int64_t kv_head = place.head / sizes.group;
  const T* const q =
      query.At(place.sequence, place.head) + first * query.token_stride;
  const T* const k = key.At(place.sequence, kv_head);
  const T* const v = value.At(place.sequence, kv_head);
  O* const o =
      output.At(place.sequence, place.head) + first * output.token_stride;
  S* const lse = log_sum_exp.At(place.sequence, place.head) +
                 first * log_sum_exp.token_stride;

  RunningRows<S> running;
  // Executed once even for d = 0, whose scores are zeros.
  for (int64_t column = 0; column == 0 || column < sizes.d;
       column += kParts<S> * kTile) {
    running.Begin(sizes.is_whole, lse, log_sum_exp.token_stride, rows);
    Square<S> sums[kParts<S>];
    TESSERA_UNROLL
    for (int part = 0; part < kParts<S>; ++part) {
      sums[part].Clear();
      if (sizes.is_whole) continue;
      ForElements(rows, column + part * kTile, sizes.d,
                  [&](int64_t row, int64_t at, int i, int j) {
                    sums[part].at[i][j] =
                        static_cast<S>(o[row * output.token_stride + at]);
                  });
    }
    for (int64_t at = begin; at < seen; at += kTile) {
      const int64_t keys = Least(kTile, seen - at);
      Square<S> scores =
          Dots(tiles, q, query.token_stride, rows, k + at * key.token_stride,
               key.token_stride, keys, sizes.d);
      MaskScores(sizes, place.sequence, first, at, scoring, scores);
      running.Merge(scores, sums);
      __syncthreads();
      StoreScores(tiles, scores);
      AddWeightedRows(tiles, v + at * value.token_stride, value.token_stride,
                      keys, column, sizes.d, sums);
    }
    TESSERA_UNROLL
    for (int part = 0; part < kParts<S>; ++part) {
      ForElements(rows, column + part * kTile, sizes.d,
                  [&](int64_t row, int64_t at, int i, int j) {
                    const bool sees = running.sum[i] != 0;
                    // Nothing seen: as it was, or zero.
                    if (!sees && !sizes.is_whole) return;
                    o[row * output.token_stride + at] = static_cast<O>(
                        sees ? sums[part].at[i][j] / running.sum[i] : S{0});
                  });
    }
  }
  // Waits until all parts have read the shared memory.
  __syncthreads();
  if (threadIdx.x % 16 != 0) return;
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t row = FirstRow() + i;
    const bool sees = running.sum[i] != 0;
    if (row >= rows || (!sees && !sizes.is_whole)) continue;
    lse[row * log_sum_exp.token_stride] =
        sees ? running.largest[i] + Log(running.sum[i]) : kMinusInfinity<S>;
  }
}

// Raises a number in memory that other blocks raise too.
template <typename S>
__device__ void RaiseTo(S value, S* at) {
  using Bits =
      std::conditional_t<sizeof(S) == 8, unsigned long long, unsigned int>;
  Bits* const bits = reinterpret_cast<Bits*>(at);
  Bits seen = atomicCAS(bits, Bits{0}, Bits{0});  // Reads it.
  while (value > std::bit_cast<S>(seen)) {
    const Bits found = atomicCAS(bits, seen, std::bit_cast<Bits>(value));
    if (found == seen) return;
    seen = found;
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(kThreads, 1)
    MaxScoresKernel(Sizes sizes, Scoring<S> scoring, Operand<const T> query,
                    Operand<const T> key, S* max_scores) {
  TESSERA_ATTENTION_TILES(S);
  const Place place(blockIdx.x, (sizes.queries + kTile - 1) / kTile,
                    sizes.heads);
  const int64_t first = place.first;
  const int64_t rows = Least(kTile, sizes.queries - first);
  const int64_t seen = sizes.SeenBy(first + rows - 1);
  const T* const q =
      query.At(place.sequence, place.head) + first * query.token_stride;
  const T* const k = key.At(place.sequence, place.head / sizes.group);
  S largest = kMinusInfinity<S>;
  for (int64_t at = sizes.HiddenFrom(place.sequence, first); at < seen;
       at += kTile) {
    Square<S> scores =
        Dots(tiles, q, query.token_stride, rows, k + at * key.token_stride,
             key.token_stride, Least(kTile, seen - at), sizes.d);
    MaskScores(sizes, place.sequence, first, at, scoring, scores);
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const bool counts = FirstRow() + i < rows && scores.at[i][j] > largest;
        if (counts) largest = scores.at[i][j];
      }
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const S other = __shfl_xor_sync(kAllLanes, largest, distance);
    if (other > largest) largest = other;
  }
  if (threadIdx.x % 32 == 0) RaiseTo(largest, max_scores + place.head);
}

// Operands of the gradient, which AttentionGradients describes. O is the type
// of the results: S, or T for a whole block.
template <typename T, typename S, typename O>
struct GradientOperands {
  Operand<const T> query, key, value, output_gradient;
  Operand<const S> log_sum_exp, delta;
  Operand<O> query_gradient, key_gradient, value_gradient;
};

// p = exp(scores - log_sum_exp), and p (products - delta) is the gradient of
// the scores; zeros for pairs that do not see each other.
template <typename T, typename S, typename O>
__global__ void __launch_bounds__(kThreads, 1)
    QueryGradientKernel(Sizes sizes, Scoring<S> scoring,
                        GradientOperands<T, S, O> operands) {
  TESSERA_ATTENTION_TILES(S);
  const Place place(blockIdx.x, (sizes.queries + kTile - 1) / kTile,
                    sizes.heads);
  const int64_t first = place.first;
  const int64_t column = int64_t{blockIdx.y} * kParts<S> * kTile;
  const int64_t rows = Least(kTile, sizes.queries - first);
  const int64_t seen = sizes.SeenBy(first + rows - 1);
  const int64_t begin = sizes.HiddenFrom(place.sequence, first);
  if (begin >= seen && !sizes.is_whole) return;

  const auto& [query, key, value, gradient, log_sum_exp, delta, dq, dk, dv] =
      operands;
  const int64_t kv_head = place.head / sizes.group;
  const T* const q =
      query.At(place.sequence, place.head) + first * query.token_stride;
  const T* const g =
      gradient.At(place.sequence, place.head) + first * gradient.token_stride;
  const T* const k = key.At(place.sequence, kv_head);
  const T* const v = value.At(place.sequence, kv_head);
  S lse[4], dots[4];
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t row = Least(FirstRow() + i, rows - 1) + first;
    lse[i] = log_sum_exp.At(place.sequence,
                            place.head)[row * log_sum_exp.token_stride];
    dots[i] = delta.At(place.sequence, place.head)[row * delta.token_stride];
  }
  Square<S> sums[kParts<S>];
  TESSERA_UNROLL
  for (int part = 0; part < kParts<S>; ++part) sums[part].Clear();
  for (int64_t at = begin; at < seen; at += kTile) {
    const int64_t keys = Least(kTile, seen - at);
    Square<S> scores =
        Dots(tiles, q, query.token_stride, rows, k + at * key.token_stride,
             key.token_stride, keys, sizes.d);
    MaskScores(sizes, place.sequence, first, at, scoring, scores);
    const Square<S> products =
        Dots(tiles, g, gradient.token_stride, rows, v + at * value.token_stride,
             value.token_stride, keys, sizes.d);
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const S score = scores.at[i][j];
        scores.at[i][j] = score == kMinusInfinity<S>
                              ? S{0}
                              : Exp(score - lse[i]) *
                                    (products.at[i][j] - dots[i]) *
                                    scoring.SlopeAt(score);
      }
    }
    __syncthreads();
    StoreScores(tiles, scores);
    AddWeightedRows(tiles, k + at * key.token_stride, key.token_stride, keys,
                    column, sizes.d, sums);
  }
  AddTo(sizes.is_whole,
        dq.At(place.sequence, place.head) + first * dq.token_stride,
        dq.token_stride, rows, column, sizes.d, scoring.scale, sums);
}

// Rows are keys, so the products of a tile are transposed. The queries of all
// heads that share the key head are added in order.
template <typename T, typename S, typename O>
__global__ void __launch_bounds__(kThreads, 1)
    KeyGradientKernel(Sizes sizes, Scoring<S> scoring,
                      GradientOperands<T, S, O> operands) {
  TESSERA_ATTENTION_TILES(S);
  const int64_t tiles_of_keys = (sizes.keys + kTile - 1) / kTile;
  const Place place(tiles_of_keys - 1 - blockIdx.x % tiles_of_keys +
                        blockIdx.x / tiles_of_keys * tiles_of_keys,
                    tiles_of_keys, sizes.heads / sizes.group);
  const int64_t first = place.first;
  const int64_t column = int64_t{blockIdx.y} * kParts<S> * kTile;
  const int64_t rows = Least(kTile, sizes.keys - first);
  // The first query that sees the first key.
  const int64_t offset = first - (sizes.keys - sizes.queries);
  const int64_t begin = sizes.is_causal && offset > 0 ? offset : 0;

  const auto& [query, key, value, gradient, log_sum_exp, delta, dq, dk, dv] =
      operands;
  const T* const k =
      key.At(place.sequence, place.head) + first * key.token_stride;
  const T* const v =
      value.At(place.sequence, place.head) + first * value.token_stride;
  Square<S> key_sums[kParts<S>], value_sums[kParts<S>];
  TESSERA_UNROLL
  for (int part = 0; part < kParts<S>; ++part) {
    key_sums[part].Clear();
    value_sums[part].Clear();
  }
  for (int64_t head = place.head * sizes.group;
       head < (place.head + 1) * sizes.group; ++head) {
    const S* const lse = log_sum_exp.At(place.sequence, head);
    const S* const dots = delta.At(place.sequence, head);
    for (int64_t at = begin; at < sizes.queries; at += kTile) {
      if (sizes.HiddenFrom(place.sequence, at) >= first + rows) break;
      const int64_t queries = Least(kTile, sizes.queries - at);
      const T* const q =
          query.At(place.sequence, head) + at * query.token_stride;
      const T* const g =
          gradient.At(place.sequence, head) + at * gradient.token_stride;
      // The gradients of products, divided by `products - dots`.
      Square<S> gradients = Dots(tiles, k, key.token_stride, rows, q,
                                 query.token_stride, queries, sizes.d);
      S row_dots[4];
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t own = at + FirstColumn() + j;
        const int64_t seen =
            own < sizes.queries ? sizes.SeenBy(own) - first : 0;
        const int64_t row = Least(own, sizes.queries - 1);
        const int64_t hidden = sizes.HiddenFrom(place.sequence, row) - first;
        const S row_lse = lse[row * log_sum_exp.token_stride];
        row_dots[j] = dots[row * delta.token_stride];
        Four<S> probabilities;
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const bool sees = FirstRow() + i < seen && FirstRow() + i >= hidden;
          const S score = scoring.Of(gradients.at[i][j]);
          const S probability = sees ? Exp(score - row_lse) : S{0};
          probabilities.values[i] = probability;
          gradients.at[i][j] =
              sees ? probability * scoring.SlopeAt(score) : S{0};
        }
        StoreColumn(tiles, j, probabilities);
      }
      AddWeightedRows(tiles, g, gradient.token_stride, queries, column, sizes.d,
                      value_sums);
      const Square<S> products = Dots(tiles, v, value.token_stride, rows, g,
                                      gradient.token_stride, queries, sizes.d);
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          gradients.at[i][j] =
              gradients.at[i][j] == S{0}
                  ? S{0}
                  : gradients.at[i][j] * (products.at[i][j] - row_dots[j]);
        }
      }
      __syncthreads();
      StoreScores(tiles, gradients);
      AddWeightedRows(tiles, q, query.token_stride, queries, column, sizes.d,
                      key_sums);
    }
  }
  AddTo(sizes.is_whole,
        dk.At(place.sequence, place.head) + first * dk.token_stride,
        dk.token_stride, rows, column, sizes.d, scoring.scale, key_sums);
  AddTo(sizes.is_whole,
        dv.At(place.sequence, place.head) + first * dv.token_stride,
        dv.token_stride, rows, column, sizes.d, S{1}, value_sums);
}

template <typename T>
Operand<const T> ReadBy(const ConstTensorView& x) {
  return {DataOf<T>(x), x.strides()[0], x.strides()[1], x.strides()[2]};
}
template <typename T>
Operand<T> WrittenBy(const TensorView& x) {
  return {DataOf<T>(x), x.strides()[0], x.strides()[1], x.strides()[2]};
}

Sizes SizesOf(const AttentionBlock& block) {
  const int64_t heads = block.query.shape()[2];
  return {.queries = block.query.shape()[1],
          .keys = block.key.shape()[1],
          .heads = heads,
          .group = heads / block.key.shape()[2],
          .d = block.query.shape()[3],
          .is_causal = block.kind == BlockKind::kCausal,
          .first_keys = block.first_keys.has_value()
                            ? DataOf<int64_t>(*block.first_keys)
                            : nullptr,
          .first_keys_stride =
              block.first_keys.has_value() ? block.first_keys->strides()[0] : 0,
          .is_whole = block.is_whole};
}

// True if there is nothing to write: a whole block writes the results of
// queries that see no key.
bool IsEmpty(const AttentionBlock& block) {
  const Dims& queries = block.query.shape();
  if (block.is_whole) return queries[0] == 0 || queries[2] == 0;
  return block.kind == BlockKind::kNone || queries[0] == 0 || queries[1] == 0 ||
         queries[2] == 0 || block.key.shape()[1] == 0;
}

absl::Status CheckGrid(int64_t blocks, const ConstTensorView& x) {
  if (blocks <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attention of shape ", DimsToString(x.shape()),
                   " is too large for one launch: split the sequences."));
}

// Calls launch(std::type_identity<O>) with the type of the results of a block
// of T.
template <typename T, typename LaunchFor>
absl::Status ForResults(const AttentionBlock& block, const LaunchFor& launch) {
  if (block.is_whole) {
    launch(std::type_identity<T>());
  } else {
    launch(std::type_identity<StatisticOf<T>>());
  }
  return absl::OkStatus();
}

// Tiles of tokens of all heads of all sequences.
int64_t TilesOf(const ConstTensorView& x) {
  const Dims& shape = x.shape();
  return shape[0] * shape[2] * ((shape[1] + kTile - 1) / kTile);
}

template <typename T, typename O>
void LaunchGradients(KernelStream stream, const AttentionBlock& block,
                     const AttentionGradients& gradients, int64_t query_blocks,
                     int64_t key_blocks) {
  using S = StatisticOf<T>;
  const GradientOperands<T, S, O> operands = {
      ReadBy<T>(block.query),
      ReadBy<T>(block.key),
      ReadBy<T>(block.value),
      ReadBy<T>(gradients.output_gradient),
      ReadBy<S>(gradients.log_sum_exp),
      ReadBy<S>(*gradients.delta),
      WrittenBy<O>(gradients.query_gradient),
      WrittenBy<O>(gradients.key_gradient),
      WrittenBy<O>(gradients.value_gradient)};
  const Sizes sizes = SizesOf(block);
  constexpr int64_t kColumns = kParts<S> * kTile;
  const auto parts = static_cast<unsigned>((sizes.d + kColumns - 1) / kColumns);
  const Scoring<S> scoring = ScoringOf<S>(block);
  if (query_blocks > 0) {
    Launch(QueryGradientKernel<T, S, O>,
           dim3(static_cast<unsigned>(query_blocks), parts), kThreads, 0,
           stream, sizes, scoring, operands);
  }
  if (key_blocks > 0) {
    Launch(KeyGradientKernel<T, S, O>,
           dim3(static_cast<unsigned>(key_blocks), parts), kThreads, 0, stream,
           sizes, scoring, operands);
  }
}

}  // namespace

absl::Status Attend(KernelStream stream, const AttentionBlock& block,
                    const AttentionState& state) {
  if (IsEmpty(block) || block.query.shape()[1] == 0) return absl::OkStatus();
  const int64_t blocks = TilesOf(block.query);
  if (absl::Status status = CheckGrid(blocks, block.query); !status.ok()) {
    return status;
  }
  return ForComputedType(
      block.query.dtype(), [&]<typename T>(std::type_identity<T>) {
        using S = StatisticOf<T>;
        return ForResults<T>(block, [&]<typename O>(std::type_identity<O>) {
          Launch(AttendKernel<T, S, O>, static_cast<unsigned>(blocks), kThreads,
                 0, stream, SizesOf(block), ScoringOf<S>(block),
                 ReadBy<T>(block.query), ReadBy<T>(block.key),
                 ReadBy<T>(block.value), WrittenBy<O>(state.output),
                 WrittenBy<S>(state.log_sum_exp));
        });
      });
}

absl::Status RaiseMaxScores(KernelStream stream, const AttentionBlock& block,
                            const TensorView& max_scores) {
  if (IsEmpty(block)) return absl::OkStatus();
  const int64_t blocks = TilesOf(block.query);
  if (absl::Status status = CheckGrid(blocks, block.query); !status.ok()) {
    return status;
  }
  return ForComputedType(block.query.dtype(), [&]<typename T>(
                                                  std::type_identity<T>) {
    using S = StatisticOf<T>;
    Launch(MaxScoresKernel<T, S>, static_cast<unsigned>(blocks), kThreads, 0,
           stream, SizesOf(block), ScoringOf<S>(block), ReadBy<T>(block.query),
           ReadBy<T>(block.key), DataOf<S>(max_scores));
    return absl::OkStatus();
  });
}

absl::Status AttendGradient(KernelStream stream, const AttentionBlock& block,
                            const AttentionGradients& gradients) {
  if (IsEmpty(block) || block.query.shape()[3] == 0) return absl::OkStatus();
  const int64_t query_blocks = TilesOf(block.query);
  const int64_t key_blocks = TilesOf(block.key);
  absl::Status status = CheckGrid(query_blocks, block.query);
  status.Update(CheckGrid(key_blocks, block.key));
  if (!status.ok()) return status;
  return ForComputedType(block.query.dtype(), [&]<typename T>(
                                                  std::type_identity<T>) {
    return ForResults<T>(block, [&]<typename O>(std::type_identity<O>) {
      LaunchGradients<T, O>(stream, block, gradients, query_blocks, key_blocks);
    });
  });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
