#include <limits>

#include "tensor_parallel/ops_cpu/targets.h"
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

template <typename S>
S LargestOf(const S* row, int64_t count, S so_far) {
  Block<S> largest = SetBlock(so_far);
  for (int64_t j = 0; j < count; j += kBlock<S>) {
    largest = Larger(First(LoadAll(row + j), count - j, so_far), largest);
  }
  return Largest(largest);
}

template <typename S>
void FillZeros(S* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kBlock<S>) {
    StoreAll(SetBlock(S{0}), row + j);
  }
}

// Returns the sum of exp(row[j] - largest), j < count, which it stores.
template <typename S>
S ExpOfRow(S* row, int64_t count, int64_t width, S largest) {
  const Block<S> shift = SetBlock(largest);
  Block<S> sum = SetBlock(S{0});
  int64_t j = 0;
  for (; j < count; j += kBlock<S>) {
    const Block<S> value =
        First(Exp(LoadAll(row + j) - shift), count - j, S{0});
    StoreAll(value, row + j);
    sum = sum + value;
  }
  FillZeros(row, j, width);
  return Sum(sum);
}

template <typename S>
void ScaleRow(S factor, S* row, int64_t n) {
  const Block<S> factors = SetBlock(factor);
  for (int64_t j = 0; j < n; j += kBlock<S>) {
    Store(Load(row + j, n - j) * factors, row + j, n - j);
  }
}

template <typename S>
HWY_INLINE void SoftmaxOf(const SoftmaxJob<S>& job) {
  const ScoreTile<S>& tile = job.tile;
  for (int64_t i = 0; i < tile.rows; ++i) {
    S* const row = tile.scores + i * tile.stride;
    const S before = job.largest[i];
    const S largest = LargestOf(row, tile.counts[i], before);
    if (tile.counts[i] == 0 || largest == kNothing<S>) {
      FillZeros(row, 0, tile.width);
      continue;
    }
    const S sum = ExpOfRow(row, tile.counts[i], tile.width, largest);
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

template <typename S>
HWY_INLINE void SoftmaxGradientOf(const SoftmaxGradientJob<S>& job) {
  const ScoreTile<S>& tile = job.tile;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const bool sees_nothing = job.log_sum_exp[i] == kNothing<S>;
    const int64_t count = sees_nothing ? 0 : tile.counts[i];
    S* const row = tile.scores + i * tile.stride;
    S* const products = job.products + i * tile.stride;
    const Block<S> shift = SetBlock(job.log_sum_exp[i]);
    const Block<S> delta = SetBlock(job.delta[i]);
    int64_t j = 0;
    for (; j < count; j += kBlock<S>) {
      const Block<S> p = First(Exp(LoadAll(row + j) - shift), count - j, S{0});
      const Block<S> g = First(LoadAll(products + j) - delta, count - j, S{0});
      StoreAll(p, row + j);
      StoreAll(p * g, products + j);
    }
    FillZeros(row, j, tile.width);
    FillZeros(products, j, tile.width);
  }
}

void SoftmaxF32(const SoftmaxJob<float>& job) { SoftmaxOf(job); }
void SoftmaxF64(const SoftmaxJob<double>& job) { SoftmaxOf(job); }
void SoftmaxGradientF32(const SoftmaxGradientJob<float>& job) {
  SoftmaxGradientOf(job);
}
void SoftmaxGradientF64(const SoftmaxGradientJob<double>& job) {
  SoftmaxGradientOf(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(SoftmaxF32);
HWY_EXPORT(SoftmaxF64);
HWY_EXPORT(SoftmaxGradientF32);
HWY_EXPORT(SoftmaxGradientF64);

void RunSoftmax(const SoftmaxJob<float>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF32)(job);
}
void RunSoftmax(const SoftmaxJob<double>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF64)(job);
}
void RunSoftmaxGradient(const SoftmaxGradientJob<float>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF32)(job);
}
void RunSoftmaxGradient(const SoftmaxGradientJob<double>& job) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF64)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
