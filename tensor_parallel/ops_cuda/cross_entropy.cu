#include <cstdint>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/row_block.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

// The sum of exp(x - largest) over some elements x.
template <typename S>
struct SoftmaxSum {
  S largest;
  S sum;
};

// The maximum of an empty sum is minus infinity, from which no value is
// subtracted.
template <typename S>
__device__ SoftmaxSum<S> Merged(SoftmaxSum<S> a, SoftmaxSum<S> b) {
  const S largest = Larger(a.largest, b.largest);
  if (largest == kMinusInfinity<S>) return {largest, S{0}};
  return {largest,
          a.sum * Exp(a.largest - largest) + b.sum * Exp(b.largest - largest)};
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    RowMaxKernel(const T* __restrict__ logits, int64_t stride, int64_t n,
                 StatisticOf<T>* __restrict__ largest) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  S value = kMinusInfinity<S>;
  ForPacks<aligned>(logits + blockIdx.x * stride, n,
                    [&](int64_t, const PackOf<T>& x, int count) {
                      for (int j = 0; j < kPackOf<T>; ++j) {
                        if (j < count) {
                          value = Larger(static_cast<S>(x.values[j]), value);
                        }
                      }
                    });
  value = BlockReduce(value, slots, MaxOf<S>());
  if (threadIdx.x == 0) largest[blockIdx.x] = value;
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    SumExpKernel(const T* __restrict__ logits, int64_t stride, int64_t n,
                 const StatisticOf<T>* __restrict__ largest,
                 StatisticOf<T>* __restrict__ sum) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  const S shift = largest[blockIdx.x];
  S value = 0;
  ForPacks<aligned>(logits + blockIdx.x * stride, n,
                    [&](int64_t, const PackOf<T>& x, int count) {
                      for (int j = 0; j < kPackOf<T>; ++j) {
                        if (j < count) {
                          value += Exp(static_cast<S>(x.values[j]) - shift);
                        }
                      }
                    });
  value = BlockReduce(value, slots, SumOf<S>());
  if (threadIdx.x == 0) sum[blockIdx.x] = value;
}

template <typename T>
__global__ void PickKernel(const T* __restrict__ logits, int64_t stride,
                           int64_t rows, IndexRange held,
                           const int64_t* __restrict__ targets,
                           StatisticOf<T>* __restrict__ picked) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  const int64_t target = targets[i];
  const bool is_held = held.begin <= target && target < held.end;
  picked[i] = is_held ? static_cast<StatisticOf<T>>(
                            logits[i * stride + (target - held.begin)])
                      : StatisticOf<T>{0};
}

template <typename S>
__device__ double Loss(S largest, S sum, S picked) {
  // Subtracts first, because large logits would absorb the logarithm.
  return Log(static_cast<double>(sum)) +
         (static_cast<double>(largest) - static_cast<double>(picked));
}

template <typename S>
__global__ void LossesKernel(int64_t rows, const S* __restrict__ largest,
                             const S* __restrict__ sum,
                             const S* __restrict__ picked,
                             const int64_t* __restrict__ targets,
                             double* __restrict__ losses) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  losses[i] = targets[i] < 0 ? 0 : Loss(largest[i], sum[i], picked[i]);
}

// LossTerms as a kernel uses them.
struct TermFactors {
  double z_loss = 0;
  double spread = 0;  // Label smoothing of each word.
  double own = 1;     // Of the target, in place of `spread`.
  double cap = 0;     // Of the logits; 0: none.
};

TermFactors FactorsOf(const LossTerms& terms, double cap = 0) {
  const double spread =
      terms.label_smoothing == 0
          ? 0
          : terms.label_smoothing / static_cast<double>(terms.vocabulary);
  return {terms.z_loss, spread, 1 - terms.label_smoothing + spread, cap};
}

// Overwrites a row with its gradient; `target` is the target's column, or
// outside of the row. Without terms the factors are 1, 0 and 1.
template <typename T, bool aligned>
__device__ void SetGradient(T* row, int64_t n, StatisticOf<T> shift,
                            StatisticOf<T> sum, int64_t target, double scale,
                            TermFactors terms) {
  using S = StatisticOf<T>;
  const S factor = S{1} / sum;
  const S own_scale = static_cast<S>(scale);
  S share_factor = 1;
  if (terms.z_loss != 0) {
    const double log_sum =
        Log(static_cast<double>(sum)) + static_cast<double>(shift);
    share_factor = static_cast<S>(1 + 2 * terms.z_loss * log_sum);
  }
  const S spread = static_cast<S>(terms.spread);
  const S own = static_cast<S>(terms.own);
  ForPacks<aligned>(row, n, [&](int64_t at, PackOf<T> x, int count) {
    for (int j = 0; j < kPackOf<T>; ++j) {
      const S logit = static_cast<S>(x.values[j]);
      S share = Exp(logit - shift) * factor * share_factor;
      share -= at + j == target ? own : spread;
      if (terms.cap != 0) {
        const S part = logit / static_cast<S>(terms.cap);
        share *= S{1} - part * part;
      }
      x.values[j] = scale == 0 ? T{} : static_cast<T>(share * own_scale);
    }
    StorePack<aligned>(x, count, row + at);
  });
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    GradientKernel(const StatisticOf<T>* __restrict__ largest,
                   const StatisticOf<T>* __restrict__ sum, IndexRange held,
                   const int64_t* __restrict__ targets,
                   const double* __restrict__ scales, TermFactors terms,
                   T* __restrict__ logits, int64_t stride) {
  const int64_t i = blockIdx.x;
  SetGradient<T, aligned>(logits + i * stride, held.end - held.begin,
                          largest[i], sum[i], targets[i] - held.begin,
                          targets[i] < 0 ? 0 : scales[i], terms);
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    MaxAndSumExpKernel(const T* __restrict__ logits, int64_t stride, int64_t n,
                       StatisticOf<T>* __restrict__ all_largest,
                       StatisticOf<T>* __restrict__ all_sums) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, maxima, kWarps);
  TESSERA_SHARED(S, sums, kWarps);
  SoftmaxSum<S> own = {kMinusInfinity<S>, S{0}};
  ForPacks<aligned>(logits + blockIdx.x * stride, n,
                    [&](int64_t, const PackOf<T>& x, int count) {
                      S largest = own.largest;
                      for (int j = 0; j < kPackOf<T>; ++j) {
                        if (j < count)
                          largest =
                              Larger(static_cast<S>(x.values[j]), largest);
                      }
                      if (largest == kMinusInfinity<S>) return;
                      if (largest != own.largest)
                        own.sum *= Exp(own.largest - largest);
                      own.largest = largest;
                      for (int j = 0; j < kPackOf<T>; ++j) {
                        if (j < count)
                          own.sum += Exp(static_cast<S>(x.values[j]) - largest);
                      }
                    });
  for (int distance = 16; distance > 0; distance /= 2) {
    const S largest = __shfl_xor_sync(kAllLanes, own.largest, distance);
    const S sum = __shfl_xor_sync(kAllLanes, own.sum, distance);
    own = Merged(own, SoftmaxSum<S>{largest, sum});
  }
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = own.largest;
    sums[threadIdx.x / 32] = own.sum;
  }
  __syncthreads();
  own = {maxima[0], sums[0]};
  for (int warp = 1; warp < kWarps; ++warp) {
    own = Merged(own, SoftmaxSum<S>{maxima[warp], sums[warp]});
  }
  // The same result as SumExp for a row of minus infinity.
  if (own.largest == kMinusInfinity<S> && n > 0)
    own.sum = std::numeric_limits<S>::quiet_NaN();
  if (threadIdx.x == 0) {
    all_largest[blockIdx.x] = own.largest;
    all_sums[blockIdx.x] = own.sum;
  }
}

// Calls `functor` with the element type and the number of elements per access
// (std::integral_constant).
template <typename Functor>
absl::Status ForRows(const ConstTensorView& logits, const Functor& functor) {
  if (logits.shape()[0] > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cross-entropy of ", logits.shape()[0],
        " rows; there may be 2^31-1: share them among several calls."));
  }
  return ForComputedType(
      logits.dtype(), [&]<typename T>(std::type_identity<T> type) {
        if (HasPacks(logits.shape()[1], kPackOf<T>, logits)) {
          functor(type, std::true_type());
        } else {
          functor(type, std::false_type());
        }
        return absl::OkStatus();
      });
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::RowMax& call) {
  const int64_t rows = call.logits.shape()[0], n = call.logits.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRows(
      call.logits, [&]<typename T, bool aligned>(std::type_identity<T>,
                                                 std::bool_constant<aligned>) {
        Launch(RowMaxKernel<T, aligned>, static_cast<unsigned>(rows), kThreads,
               0, cuda.stream, DataOf<T>(call.logits), call.logits.strides()[0],
               n, DataOf<StatisticOf<T>>(call.largest));
      });
}

absl::Status Run(CudaBackend& cuda, const op::SumExp& call) {
  const int64_t rows = call.logits.shape()[0], n = call.logits.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRows(
      call.logits, [&]<typename T, bool aligned>(std::type_identity<T>,
                                                 std::bool_constant<aligned>) {
        Launch(SumExpKernel<T, aligned>, static_cast<unsigned>(rows), kThreads,
               0, cuda.stream, DataOf<T>(call.logits), call.logits.strides()[0],
               n, DataOf<StatisticOf<T>>(call.largest),
               DataOf<StatisticOf<T>>(call.sum));
      });
}

absl::Status Run(CudaBackend& cuda, const op::MaxAndSumExp& call) {
  const int64_t rows = call.logits.shape()[0], n = call.logits.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRows(call.logits, [&]<typename T, bool aligned>(
                                  std::type_identity<T>,
                                  std::bool_constant<aligned>) {
    Launch(MaxAndSumExpKernel<T, aligned>, static_cast<unsigned>(rows),
           kThreads, 0, cuda.stream, DataOf<T>(call.logits),
           call.logits.strides()[0], n, DataOf<StatisticOf<T>>(call.largest),
           DataOf<StatisticOf<T>>(call.sum));
  });
}

absl::Status Run(CudaBackend& cuda, const op::Pick& call) {
  const int64_t rows = call.logits.shape()[0];
  if (rows == 0) return absl::OkStatus();
  return ForComputedType(call.logits.dtype(), [&]<typename T>(
                                                  std::type_identity<T>) {
    Launch(PickKernel<T>, BlocksOf(rows), kThreads, 0, cuda.stream,
           DataOf<T>(call.logits), call.logits.strides()[0], rows, call.held,
           DataOf<int64_t>(call.targets), DataOf<StatisticOf<T>>(call.picked));
    return absl::OkStatus();
  });
}

absl::Status Run(CudaBackend& cuda, const op::CrossEntropyLosses& call) {
  const int64_t rows = call.losses.element_count();
  if (rows == 0) return absl::OkStatus();
  return ForComputedType(call.largest.dtype(), [&]<typename T>(
                                                   std::type_identity<T>) {
    using S = StatisticOf<T>;
    Launch(LossesKernel<S>, BlocksOf(rows), kThreads, 0, cuda.stream, rows,
           DataOf<S>(call.largest), DataOf<S>(call.sum), DataOf<S>(call.picked),
           DataOf<int64_t>(call.targets), DataOf<double>(call.losses));
    return absl::OkStatus();
  });
}

absl::Status Run(CudaBackend& cuda, const op::CrossEntropyGradient& call) {
  if (call.logits.element_count() == 0) return absl::OkStatus();
  return ForRows(
      call.logits, [&]<typename T, bool aligned>(std::type_identity<T>,
                                                 std::bool_constant<aligned>) {
        Launch(GradientKernel<T, aligned>,
               static_cast<unsigned>(call.logits.shape()[0]), kThreads, 0,
               cuda.stream, DataOf<StatisticOf<T>>(call.largest),
               DataOf<StatisticOf<T>>(call.sum), call.held,
               DataOf<int64_t>(call.targets), DataOf<double>(call.scales),
               FactorsOf(call.terms, call.cap), DataOf<T>(call.logits),
               call.logits.strides()[0]);
      });
}

void AddCrossEntropyKernels(CudaKernelTable& table) {
  table.Add<op::RowMax, op::SumExp, op::MaxAndSumExp, op::Pick,
            op::CrossEntropyLosses, op::CrossEntropyGradient>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
