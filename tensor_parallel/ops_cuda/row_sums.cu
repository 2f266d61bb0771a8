// Kernels with sums over rows or columns: RmsNorm, AddRmsNorm, their gradients
// and parts, SumRows, RowDots and Sum.
//
// A block sums a row, in an order that depends only on its length. Columns are
// summed in two passes: parts of the rows, then the sums of the parts, in an
// order that depends only on the number of rows and columns. All are
// memory-bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/row_block.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

// A thread's sum of squares of a row.
template <typename T, bool aligned>
__device__ StatisticOf<T> Squares(const T* row, int64_t n) {
  using S = StatisticOf<T>;
  S squares = 0;
  ForPacks<aligned>(row, n, [&](int64_t, const PackOf<T>& v, int count) {
    for (int j = 0; j < kPackOf<T>; ++j) {
      const S value = static_cast<S>(v.values[j]);
      if (j < count) squares += value * value;
    }
  });
  return squares;
}

// Writes a row of the norm and its inverse, from the sum of squares of all its
// `width` elements, of which n are here.
template <typename T, bool aligned>
__device__ void FinishNorm(StatisticOf<T> squares, int64_t width, int64_t n,
                           StatisticOf<T> epsilon, const T* row,
                           const T* weight, T* out, StatisticOf<T>* inverse) {
  using S = StatisticOf<T>;
  const S scale =
      S{1} / ::sqrt(squares / static_cast<S>(width > 0 ? width : 1) + epsilon);
  if (threadIdx.x == 0) inverse[blockIdx.x] = scale;
  ForPacks<aligned>(row, n, [&](int64_t at, PackOf<T> v, int count) {
    const PackOf<T> w = LoadPack<aligned>(weight + at, count);
    for (int j = 0; j < kPackOf<T>; ++j) {
      v.values[j] = static_cast<T>(static_cast<S>(v.values[j]) * scale *
                                   static_cast<S>(w.values[j]));
    }
    StorePack<aligned>(v, count, out + at);
  });
}

// A block for each row. `sums` are the sums of squares; null: of x.
template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    RmsNormKernel(int64_t width, int64_t n, StatisticOf<T> epsilon,
                  const StatisticOf<T>* sums, const T* x, int64_t x_stride,
                  const T* weight, T* y, int64_t y_stride,
                  StatisticOf<T>* inverse) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  const T* const row = x + blockIdx.x * x_stride;
  const S squares = sums != nullptr ? sums[blockIdx.x]
                                    : BlockReduce(Squares<T, aligned>(row, n),
                                                  slots, SumOf<S>());
  FinishNorm<T, aligned>(squares, width, n, epsilon, row, weight,
                         y + blockIdx.x * y_stride, inverse);
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    SquaresKernel(int64_t n, const T* x, int64_t x_stride,
                  StatisticOf<T>* sums) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  const S squares = BlockReduce(
      Squares<T, aligned>(x + blockIdx.x * x_stride, n), slots, SumOf<S>());
  if (threadIdx.x == 0) sums[blockIdx.x] = squares;
}

// The same for x += residual.
template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    AddRmsNormKernel(int64_t n, StatisticOf<T> epsilon, const T* residual,
                     int64_t residual_stride, const T* weight, T* x,
                     int64_t x_stride, T* y, int64_t y_stride,
                     StatisticOf<T>* inverse) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  const T* const other = residual + blockIdx.x * residual_stride;
  T* const row = x + blockIdx.x * x_stride;
  S squares = 0;
  // Each thread reads back only its own packs.
  ForPacks<aligned>(row, n, [&](int64_t at, PackOf<T> v, int count) {
    const PackOf<T> r = LoadPack<aligned>(other + at, count);
    for (int j = 0; j < kPackOf<T>; ++j) {
      v.values[j] = static_cast<T>(static_cast<S>(r.values[j]) +
                                   static_cast<S>(v.values[j]));
      const S value = static_cast<S>(v.values[j]);
      if (j < count) squares += value * value;
    }
    StorePack<aligned>(v, count, row + at);
  });
  FinishNorm<T, aligned>(BlockReduce(squares, slots, SumOf<S>()), n, n, epsilon,
                         row, weight, y + blockIdx.x * y_stride, inverse);
}

// The block's sum of the normalised elements of a row times their gradients.
template <typename T, bool aligned>
__device__ StatisticOf<T> GradientSum(int64_t n, const T* upper, const T* row,
                                      const T* weight, StatisticOf<T> scale,
                                      StatisticOf<T>* slots) {
  using S = StatisticOf<T>;
  S dot = 0;
  ForPacks<aligned>(row, n, [&](int64_t at, const PackOf<T>& v, int count) {
    const PackOf<T> g = LoadPack<aligned>(upper + at, count);
    const PackOf<T> w = LoadPack<aligned>(weight + at, count);
    for (int j = 0; j < kPackOf<T>; ++j) {
      if (j >= count) continue;
      dot += static_cast<S>(g.values[j]) * static_cast<S>(w.values[j]) *
             (static_cast<S>(v.values[j]) * scale);
    }
  });
  return BlockReduce(dot, slots, SumOf<S>());
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 1)
    GradientSumsKernel(int64_t n, const T* gradient, int64_t gradient_stride,
                       const T* x, int64_t x_stride, const T* weight,
                       const StatisticOf<T>* inverse, StatisticOf<T>* sums) {
  TESSERA_SHARED(StatisticOf<T>, slots, kWarps);
  const auto sum = GradientSum<T, aligned>(
      n, gradient + blockIdx.x * gradient_stride, x + blockIdx.x * x_stride,
      weight, inverse[blockIdx.x], slots);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The operands of a row of an input gradient, and where it is written.
// `residual` is null unless it is added.
template <typename T>
struct GradientRow {
  const T* gradient;
  const T* x;
  const T* residual;
  T* out;
};

template <typename T>
struct GradientRows {
  const T* gradient;
  int64_t gradient_stride;
  const T* x;
  int64_t x_stride;
  const T* residual;
  int64_t residual_stride;
  T* out;
  int64_t out_stride;

  __device__ GradientRow<T> at(int64_t row) const {
    return {gradient + row * gradient_stride, x + row * x_stride,
            residual == nullptr ? nullptr : residual + row * residual_stride,
            out + row * out_stride};
  }
};

// With v the normalised row and g its gradient: (g - v mean(g v)) * inverse,
// rounded, plus the residual if it adds. Calls visit(index, terms, count) with
// the terms of the weight's gradient.
template <typename T, bool aligned, bool adds, typename Visit>
__device__ void WriteGradient(int64_t n, const GradientRow<T>& row,
                              const T* weight, StatisticOf<T> scale,
                              StatisticOf<T> mean, const Visit& visit) {
  using S = StatisticOf<T>;
  ForPacks<aligned>(row.x, n, [&](int64_t at, PackOf<T> v, int count) {
    const PackOf<T> g = LoadPack<aligned>(row.gradient + at, count);
    const PackOf<T> w = LoadPack<aligned>(weight + at, count);
    PackOf<T> r = {};
    if constexpr (adds) r = LoadPack<aligned>(row.residual + at, count);
    Pack<S, kPackOf<T>> terms;
    for (int j = 0; j < kPackOf<T>; ++j) {
      const S upper = static_cast<S>(g.values[j]);
      const S normalised = static_cast<S>(v.values[j]) * scale;
      const S own = upper * static_cast<S>(w.values[j]);
      terms.values[j] = upper * normalised;
      v.values[j] = static_cast<T>((own - normalised * mean) * scale);
      if constexpr (adds) {
        v.values[j] = static_cast<T>(static_cast<S>(r.values[j]) +
                                     static_cast<S>(v.values[j]));
      }
    }
    visit(at, terms, count);
    StorePack<aligned>(v, count, row.out + at);
  });
}

// A block for each row. `sums` are those of g v over all `width` elements;
// null: of the n here.
template <typename T, bool aligned, bool adds>
__global__ void __launch_bounds__(kThreads, 1)
    InputGradientKernel(int64_t width, int64_t n, const StatisticOf<T>* sums,
                        GradientRows<T> rows, const T* weight,
                        const StatisticOf<T>* inverse) {
  using S = StatisticOf<T>;
  TESSERA_SHARED(S, slots, kWarps);
  const GradientRow<T> row = rows.at(blockIdx.x);
  const S scale = inverse[blockIdx.x];
  const S sum = sums != nullptr
                    ? sums[blockIdx.x]
                    : GradientSum<T, aligned>(n, row.gradient, row.x, weight,
                                              scale, slots);
  WriteGradient<T, aligned, adds>(n, row, weight, scale,
                                  sum / static_cast<S>(width),
                                  [](int64_t, const auto&, int) {});
}

// A block for each part of the rows: their input gradients plus residuals, and
// parts[block] = the sums of the weight's gradients over these rows, which are
// kept in shared memory, where each thread has the columns of its packs.
template <typename T, bool aligned>
__global__ void __launch_bounds__(kThreads, 4)
    GradientsKernel(int64_t count, int64_t rows_of_part, int64_t n,
                    GradientRows<T> rows, const T* weight,
                    const StatisticOf<T>* inverse, StatisticOf<T>* parts) {
  using S = StatisticOf<T>;
  constexpr int kPack = kPackOf<T>;
  TESSERA_DYNAMIC_SHARED(S, sums);
  // The next row's sums are written while the last ones may still be read.
  TESSERA_SHARED(S, slots, 2 * kWarps);
  const auto for_own = [&](const auto& f) {
    for (int64_t at = int64_t{threadIdx.x} * kPack; at < n;
         at += int64_t{kThreads} * kPack) {
      f(at, aligned || at + kPack <= n ? kPack : static_cast<int>(n - at));
    }
  };
  for_own([&](int64_t at, int valid) {
    StoreValues<aligned>(Pack<S, kPack>{}, valid, sums + at);
  });
  const int64_t begin = blockIdx.x * rows_of_part;
  const int64_t end =
      begin + rows_of_part < count ? begin + rows_of_part : count;
  for (int64_t i = begin; i < end; ++i) {
    const GradientRow<T> row = rows.at(i);
    const S scale = inverse[i];
    const S sum = GradientSum<T, aligned>(n, row.gradient, row.x, weight, scale,
                                          slots + (i - begin) % 2 * kWarps);
    WriteGradient<T, aligned, true>(
        n, row, weight, scale, sum / static_cast<S>(n),
        [&](int64_t at, const Pack<S, kPack>& terms, int valid) {
          auto total = LoadValues<aligned, kPack>(sums + at, valid);
          for (int j = 0; j < kPack; ++j) total.values[j] += terms.values[j];
          StoreValues<aligned>(total, valid, sums + at);
        });
  }
  for_own([&](int64_t at, int valid) {
    StoreValues<aligned>(LoadValues<aligned, kPack>(sums + at, valid), valid,
                         parts + blockIdx.x * n + at);
  });
}

// The term of an element whose columns are summed: the element, or its product
// with the normalised x.
template <typename T>
struct ColumnTerms {
  using S = StatisticOf<T>;
  const T* gradient;
  int64_t gradient_stride;
  const T* x;  // Null: the gradient alone.
  int64_t x_stride;
  const S* inverse;

  __device__ S operator()(int64_t row, int64_t column) const {
    const S g = static_cast<S>(gradient[row * gradient_stride + column]);
    if (x == nullptr) return g;
    return g * (static_cast<S>(x[row * x_stride + column]) * inverse[row]);
  }
};

// parts[y][column] = the sum of rows [y * rows_of_part, ...). Each thread has
// one column, so that accesses are coalesced.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ColumnPartsKernel(int64_t rows, int64_t rows_of_part, int64_t n,
                      ColumnTerms<T> terms, StatisticOf<T>* parts) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= n) return;
  const int64_t begin = int64_t{blockIdx.y} * rows_of_part;
  const int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  StatisticOf<T> sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += terms(row, column);
  parts[blockIdx.y * n + column] = sum;
}

// A block for each 32 columns: each warp sums some of the parts, and the first
// one adds their sums to the target.
template <typename S, typename Target>
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(int64_t count, int64_t n, const S* parts, Target* target) {
  TESSERA_SHARED(S, sums, kThreads);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  S sum = 0;
  if (column < n) {
    for (int64_t i = warp; i < count; i += kWarps) sum += parts[i * n + column];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= n) return;
  sum = static_cast<S>(target[column]);
  for (int i = 0; i < kWarps; ++i) sum += sums[i * 32 + lane];
  target[column] = static_cast<Target>(sum);
}

// The parts of rows whose columns are summed.
struct RowParts {
  int64_t rows_of_part = 0;
  int64_t count = 0;
};

// Four blocks for each of 132 multiprocessors, or fewer of about four rows. The
// sums of the parts have at most 2^22 elements.
RowParts PartsOf(int64_t rows, int64_t n) {
  const int64_t wanted = std::clamp<int64_t>(
      std::min((rows + 3) / 4, (int64_t{1} << 22) / n), 1, 132 * 4);
  const int64_t rows_of_part = (rows + wanted - 1) / wanted;
  return {rows_of_part, (rows + rows_of_part - 1) / rows_of_part};
}

// Calls `set(parts)` to enqueue kernels that set the sums of all parts, S
// [parts.count, n], and adds them to `target`.
template <typename S, typename T, typename Set>
absl::Status AddColumnSums(CudaBackend& cuda, const RowParts& parts, int64_t n,
                           const TensorView& target, const Set& set) {
  TESSERA_ASSIGN_OR_RETURN(
      std::byte* const memory,
      cuda.scratch.Reserve(parts.count * n * static_cast<int64_t>(sizeof(S))));
  S* const sums = reinterpret_cast<S*>(memory);
  set(sums);
  // The target has type T or the type of its statistics.
  const auto add = [&]<typename Target>(std::type_identity<Target>) {
    Launch(AddPartsKernel<S, Target>, static_cast<unsigned>((n + 31) / 32),
           kThreads, 0, cuda.stream, parts.count, n, sums,
           DataOf<Target>(target));
  };
  if (SizeInBytes(target.dtype()) == sizeof(T)) {
    add(std::type_identity<T>());
  } else {
    add(std::type_identity<S>());
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status SumColumns(CudaBackend& cuda, int64_t rows, int64_t n,
                        const ColumnTerms<T>& terms, const TensorView& target) {
  using S = StatisticOf<T>;
  if (rows == 0 || n == 0) return absl::OkStatus();
  const RowParts parts = PartsOf(rows, n);
  return AddColumnSums<S, T>(cuda, parts, n, target, [&](S* sums) {
    Launch(ColumnPartsKernel<T>,
           dim3(BlocksOf(n), static_cast<unsigned>(parts.count)), kThreads, 0,
           cuda.stream, rows, parts.rows_of_part, n, terms, sums);
  });
}

// The rows of an operand with up to three dimensions before the last.
struct RowStrides {
  int64_t shape[3] = {1, 1, 1};
  int64_t output[3] = {};
  int64_t gradient[3] = {};
  int64_t dots[3] = {};
};

// A warp for each row. `Output` is T or the type of its statistics.
template <typename T, typename Output>
__global__ void __launch_bounds__(kThreads)
    RowDotsKernel(int64_t rows, int64_t d, RowStrides strides,
                  const Output* output, const T* gradient,
                  StatisticOf<T>* dots) {
  using S = StatisticOf<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  int64_t rest = row, from = 0, with = 0, to = 0;
  for (int dim = 2; dim >= 0; --dim) {
    const int64_t next = rest / strides.shape[dim];
    const int64_t at = rest - next * strides.shape[dim];
    from += at * strides.output[dim];
    with += at * strides.gradient[dim];
    to += at * strides.dots[dim];
    rest = next;
  }
  S sum = 0;
  for (int64_t i = threadIdx.x % 32; i < d; i += 32) {
    sum +=
        static_cast<S>(output[from + i]) * static_cast<S>(gradient[with + i]);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  if (threadIdx.x % 32 == 0) dots[to] = sum;
}

// All threads load, the first one adds.
__global__ void __launch_bounds__(kThreads)
    SumKernel(double factor, int64_t n, const double* x, double* total) {
  TESSERA_SHARED(double, values, kThreads);
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kThreads) {
    if (begin + threadIdx.x < n) values[threadIdx.x] = x[begin + threadIdx.x];
    __syncthreads();
    const int64_t count = n - begin < kThreads ? n - begin : kThreads;
    if (threadIdx.x == 0) {
      for (int64_t i = 0; i < count; ++i) sum += values[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = factor * sum;
}

// Calls functor(type, aligned) for the rows of n elements of these views.
template <typename Functor, typename... Views>
absl::Status ForRowsOf(int64_t rows, int64_t n, DType dtype,
                       const Functor& functor, const Views&... views) {
  if (rows > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows,
                     " rows; kernels take 2^31-1: share them among "
                     "several calls."));
  }
  return ForComputedType(dtype, [&]<typename T>(std::type_identity<T> type) {
    if (HasPacks(n, kPackOf<T>, views...)) {
      return functor(type, std::true_type());
    }
    return functor(type, std::false_type());
  });
}

}  // namespace

// The norm of rows of which `width` elements are normalised together. `sums`
// are their sums of squares; null: those of x.
template <typename Call>
absl::Status RunNorm(CudaBackend& cuda, const Call& call, int64_t width,
                     const ConstTensorView* sums) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        using S = StatisticOf<T>;
        Launch(RmsNormKernel<T, aligned>, static_cast<unsigned>(rows), kThreads,
               0, cuda.stream, width, n, static_cast<S>(call.epsilon),
               sums == nullptr ? nullptr : DataOf<S>(*sums), DataOf<T>(call.x),
               call.x.strides()[0], DataOf<T>(call.weight), DataOf<T>(call.y),
               call.y.strides()[0], DataOf<S>(call.inverse));
        return absl::OkStatus();
      },
      call.x, call.weight, call.y);
}

// The operands of an input gradient; `residual` may be null.
template <typename T, typename Call>
GradientRows<T> RowsOf(const Call& call, const ConstTensorView* residual) {
  return {DataOf<T>(call.gradient),
          call.gradient.strides()[0],
          DataOf<T>(call.x),
          call.x.strides()[0],
          residual == nullptr ? nullptr : DataOf<T>(*residual),
          residual == nullptr ? 0 : residual->strides()[0],
          DataOf<T>(call.x_gradient),
          call.x_gradient.strides()[0]};
}

// Its input gradient, plus `residual` if it adds; otherwise `residual` is x.
template <bool adds, typename Call>
absl::Status RunInputGradient(CudaBackend& cuda, const Call& call,
                              int64_t width, const ConstTensorView* sums,
                              const ConstTensorView& residual) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        using S = StatisticOf<T>;
        Launch(InputGradientKernel<T, aligned, adds>,
               static_cast<unsigned>(rows), kThreads, 0, cuda.stream, width, n,
               sums == nullptr ? nullptr : DataOf<S>(*sums),
               RowsOf<T>(call, adds ? &residual : nullptr),
               DataOf<T>(call.weight), DataOf<S>(call.inverse));
        return absl::OkStatus();
      },
      call.gradient, call.x, call.weight, residual, call.x_gradient);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNorm& call) {
  return RunNorm(cuda, call, call.x.shape()[1], nullptr);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNormOfSums& call) {
  return RunNorm(cuda, call, call.width, &call.sums);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNormInputGradient& call) {
  return RunInputGradient<false>(cuda, call, call.x.shape()[1], nullptr,
                                 call.x);
}

absl::Status Run(CudaBackend& cuda,
                 const op::RmsNormInputGradientOfSums& call) {
  return RunInputGradient<false>(cuda, call, call.width, &call.sums, call.x);
}

absl::Status Run(CudaBackend& cuda, const op::AddRmsNormInputGradient& call) {
  return RunInputGradient<true>(cuda, call, call.x.shape()[1], nullptr,
                                call.residual_gradient);
}

absl::Status Run(CudaBackend& cuda, const op::AddRmsNorm& call) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        using S = StatisticOf<T>;
        Launch(AddRmsNormKernel<T, aligned>, static_cast<unsigned>(rows),
               kThreads, 0, cuda.stream, n, static_cast<S>(call.epsilon),
               DataOf<T>(call.residual), call.residual.strides()[0],
               DataOf<T>(call.weight), DataOf<T>(call.x), call.x.strides()[0],
               DataOf<T>(call.y), call.y.strides()[0], DataOf<S>(call.inverse));
        return absl::OkStatus();
      },
      call.residual, call.x, call.weight, call.y);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNormSums& call) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        Launch(SquaresKernel<T, aligned>, static_cast<unsigned>(rows), kThreads,
               0, cuda.stream, n, DataOf<T>(call.x), call.x.strides()[0],
               DataOf<StatisticOf<T>>(call.sums));
        return absl::OkStatus();
      },
      call.x);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNormGradientSums& call) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0) return absl::OkStatus();
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        using S = StatisticOf<T>;
        Launch(GradientSumsKernel<T, aligned>, static_cast<unsigned>(rows),
               kThreads, 0, cuda.stream, n, DataOf<T>(call.gradient),
               call.gradient.strides()[0], DataOf<T>(call.x),
               call.x.strides()[0], DataOf<T>(call.weight),
               DataOf<S>(call.inverse), DataOf<S>(call.sums));
        return absl::OkStatus();
      },
      call.gradient, call.x, call.weight);
}

absl::Status Run(CudaBackend& cuda, const op::RmsNormWeightGradient& call) {
  return ForComputedType(call.x.dtype(), [&]<typename T>(
                                             std::type_identity<T>) {
    return SumColumns<T>(cuda, call.x.shape()[0], call.x.shape()[1],
                         {DataOf<T>(call.gradient), call.gradient.strides()[0],
                          DataOf<T>(call.x), call.x.strides()[0],
                          DataOf<StatisticOf<T>>(call.inverse)},
                         call.weight_gradient);
  });
}

// Two operations if the sums of the columns exceed the shared memory.
absl::Status Run(CudaBackend& cuda, const op::AddRmsNormGradients& call) {
  constexpr int64_t kMostShared = 47 << 10;
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  if (rows == 0 || n == 0) return absl::OkStatus();
  const int64_t shared = n * SizeInBytes(call.inverse.dtype());
  if (shared > kMostShared) {
    TESSERA_RETURN_IF_ERROR(
        Run(cuda, op::RmsNormWeightGradient{call.gradient, call.x, call.inverse,
                                            call.weight_gradient}));
    return Run(cuda, op::AddRmsNormInputGradient{
                         call.gradient, call.x, call.weight, call.inverse,
                         call.residual_gradient, call.x_gradient});
  }
  const RowParts parts = PartsOf(rows, n);
  return ForRowsOf(
      rows, n, call.x.dtype(),
      [&]<typename T, bool aligned>(std::type_identity<T>,
                                    std::bool_constant<aligned>) {
        using S = StatisticOf<T>;
        return AddColumnSums<S, T>(
            cuda, parts, n, call.weight_gradient, [&](S* sums) {
              Launch(GradientsKernel<T, aligned>,
                     static_cast<unsigned>(parts.count), kThreads,
                     static_cast<size_t>(shared), cuda.stream, rows,
                     parts.rows_of_part, n,
                     RowsOf<T>(call, &call.residual_gradient),
                     DataOf<T>(call.weight), DataOf<S>(call.inverse), sums);
            });
      },
      call.gradient, call.x, call.weight, call.residual_gradient,
      call.x_gradient);
}

absl::Status Run(CudaBackend& cuda, const op::SumRows& call) {
  return ForComputedType(
      call.gradient.dtype(), [&]<typename T>(std::type_identity<T>) {
        return SumColumns<T>(cuda, call.gradient.shape()[0],
                             call.gradient.shape()[1],
                             {DataOf<T>(call.gradient),
                              call.gradient.strides()[0], nullptr, 0, nullptr},
                             call.bias_gradient);
      });
}

absl::Status SetRowDots(CudaBackend& cuda, const op::RowDots& call) {
  if (call.dots.element_count() == 0) return absl::OkStatus();
  RowStrides strides;
  const int outer = call.output.rank() - 1;
  for (int i = 0; i < outer; ++i) {
    const int at = 3 - outer + i;
    strides.shape[at] = call.output.shape()[i];
    strides.output[at] = call.output.strides()[i];
    strides.gradient[at] = call.output_gradient.strides()[i];
    strides.dots[at] = call.dots.strides()[i];
  }
  const int64_t rows = call.dots.element_count();
  return ForComputedType(
      call.output_gradient.dtype(), [&]<typename T>(std::type_identity<T>) {
        using S = StatisticOf<T>;
        const auto run = [&]<typename Output>(std::type_identity<Output>) {
          Launch(RowDotsKernel<T, Output>,
                 static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads,
                 0, cuda.stream, rows, call.output.shape()[outer], strides,
                 DataOf<Output>(call.output), DataOf<T>(call.output_gradient),
                 DataOf<S>(call.dots));
          return absl::OkStatus();
        };
        return call.output.dtype() == call.output_gradient.dtype()
                   ? run(std::type_identity<T>())
                   : run(std::type_identity<S>());
      });
}

absl::Status Run(CudaBackend& cuda, const op::RowDots& call) {
  return SetRowDots(cuda, call);
}

absl::Status Run(CudaBackend& cuda, const op::Sum& call) {
  Launch(SumKernel, 1, kThreads, 0, cuda.stream, call.factor,
         call.x.element_count(), DataOf<double>(call.x),
         DataOf<double>(call.total));
  return absl::OkStatus();
}

void AddRowSumKernels(CudaKernelTable& table) {
  table.Add<op::RmsNorm, op::RmsNormInputGradient, op::AddRmsNorm,
            op::AddRmsNormInputGradient, op::AddRmsNormGradients,
            op::RmsNormSums, op::RmsNormOfSums, op::RmsNormGradientSums,
            op::RmsNormInputGradientOfSums, op::RmsNormWeightGradient,
            op::SumRows, op::RowDots, op::Sum>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
