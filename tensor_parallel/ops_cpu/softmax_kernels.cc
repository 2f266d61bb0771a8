#include <limits>

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/softmax_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/exp-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

template <typename S>
inline constexpr S kNothing = -std::numeric_limits<S>::infinity();

// Of scale times the elements, and `so_far`.
template <typename S>
S LargestOf(const S* row, S scale, int64_t count, S so_far) {
  const Block<S> factor = SetBlock(scale);
  Block<S> largest = SetBlock(so_far);
  ForEachBlock<S>(count, [&](int64_t j, auto left) HWY_ATTR {
    const Block<S> scores = LoadAll(row + j) * factor;
    largest = Larger(First<S>(scores, left, so_far), largest);
  });
  return Largest(largest);
}

// `count`, rounded up to whole blocks.
template <typename S>
constexpr int64_t EndOfBlocks(int64_t count) {
  return (count + kBlock<S> - 1) / kBlock<S> * kBlock<S>;
}

template <typename T>
void FillZeros(T* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kBlock<T>) {
    StoreAll(SetBlock(StatisticOf<T>{0}), row + j);
  }
}

// The weights of a row, and their sum.
template <typename T, typename S = StatisticOf<T>>
S ExpOfRow(const S* row, S scale, int64_t count, int64_t width, S largest,
           T* weights) {
  const Block<S> factor = SetBlock(scale), shift = SetBlock(largest);
  Block<S> sum = SetBlock(S{0});
  ForEachBlock<S>(count, [&](int64_t j, auto left) HWY_ATTR {
    const Block<S> value =
        First<S>(ExpFor<T>(LoadAll(row + j) * factor - shift), left, S{0});
    StoreAll(value, weights + j);
    sum = sum + value;
  });
  FillZeros(weights, EndOfBlocks<S>(count), width);
  return Sum(sum);
}

template <typename S>
void ScaleRow(S factor, S* row, int64_t n) {
  const Block<S> factors = SetBlock(factor);
  for (int64_t j = 0; j < n; j += kBlock<S>) {
    Store(Load(row + j, n - j) * factors, row + j, n - j);
  }
}

template <typename T>
HWY_INLINE void SoftmaxOf(const SoftmaxJob<T>& job) {
  using S = StatisticOf<T>;
  const ScoreTile<T>& tile = job.tile;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const S* const row = tile.products + i * tile.stride;
    T* const weights = tile.weights + i * tile.stride;
    const S before = job.largest[i];
    const S largest = LargestOf(row, tile.scale, tile.counts[i], before);
    if (tile.counts[i] == 0 || largest == kNothing<S>) {
      FillZeros(weights, 0, tile.width);
      continue;
    }
    const S sum =
        ExpOfRow(row, tile.scale, tile.counts[i], tile.width, largest, weights);
    if (largest == before) {
      job.sum[i] += sum;
      continue;
    }
    alignas(64) S corrections[kBlock<S>];
    StoreAll(Exp(SetBlock(before - largest)), corrections);
    job.sum[i] = job.sum[i] * corrections[0] + sum;
    job.largest[i] = largest;
    if (before != kNothing<S>) {
      ScaleRow(corrections[0], job.output + i * job.d, job.d);
    }
  }
}

template <typename T>
HWY_INLINE void SoftmaxGradientOf(const SoftmaxGradientJob<T>& job) {
  using S = StatisticOf<T>;
  const ScoreTile<T>& tile = job.tile;
  const Block<S> scale = SetBlock(tile.scale), slope = SetBlock(tile.slope);
  const Block<S> cap = SetBlock(tile.cap), one = SetBlock(S{1});
  for (int64_t i = 0; i < tile.rows; ++i) {
    const bool sees_nothing = job.log_sum_exp[i] == kNothing<S>;
    const int64_t count = sees_nothing ? 0 : tile.counts[i];
    const int64_t at = i * tile.stride;
    const Block<S> shift = SetBlock(job.log_sum_exp[i]);
    const Block<S> delta = SetBlock(job.delta[i]);
    ForEachBlock<S>(count, [&](int64_t j, auto left) HWY_ATTR {
      const Block<S> score = LoadAll(tile.products + at + j) * scale;
      const Block<S> g = LoadAll(job.weight_gradients + at + j) - delta;
      const Block<S> p = First<S>(ExpFor<T>(score - shift), left, S{0});
      StoreAll(p, tile.weights + at + j);
      Block<S> product = p * First<S>(g, left, S{0}) * slope;
      if (tile.cap != 0) {
        // Hidden keys, whose score is infinite, have no gradient either way.
        const Block<S> share = Larger(score, SetBlock(-tile.cap)) / cap;
        product = product * First<S>(one - share * share, left, S{0});
      }
      StoreAll(product, job.product_gradients + at + j);
    });
    FillZeros(tile.weights + at, EndOfBlocks<S>(count), tile.width);
    FillZeros(job.product_gradients + at, EndOfBlocks<S>(count), tile.width);
  }
}

void SoftmaxF32(const SoftmaxJob<float>& job) { SoftmaxOf(job); }
void SoftmaxF64(const SoftmaxJob<double>& job) { SoftmaxOf(job); }
void SoftmaxBF16(const SoftmaxJob<BF16>& job) { SoftmaxOf(job); }
void SoftmaxGradientF32(const SoftmaxGradientJob<float>& job) {
  SoftmaxGradientOf(job);
}
void SoftmaxGradientF64(const SoftmaxGradientJob<double>& job) {
  SoftmaxGradientOf(job);
}
void SoftmaxGradientBF16(const SoftmaxGradientJob<BF16>& job) {
  SoftmaxGradientOf(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(SoftmaxF32);
HWY_EXPORT(SoftmaxF64);
HWY_EXPORT(SoftmaxBF16);
HWY_EXPORT(SoftmaxGradientF32);
HWY_EXPORT(SoftmaxGradientF64);
HWY_EXPORT(SoftmaxGradientBF16);

template <>
void RunSoftmax(const SoftmaxJob<float>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF32)(job);
}
template <>
void RunSoftmax(const SoftmaxJob<double>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF64)(job);
}
template <>
void RunSoftmax(const SoftmaxJob<BF16>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxBF16)(job);
}
template <>
void RunSoftmaxGradient(const SoftmaxGradientJob<float>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF32)(job);
}
template <>
void RunSoftmaxGradient(const SoftmaxGradientJob<double>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF64)(job);
}
template <>
void RunSoftmaxGradient(const SoftmaxGradientJob<BF16>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientBF16)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
