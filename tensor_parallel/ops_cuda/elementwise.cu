// Elementwise kernels: Copy, Add, Scale, SoftCap, Fill, Cast, AddBias, Dropout,
// Glu, GluGradient, Rotate, AddSinks and SinkGradients.
//
// All are memory-bound: each element is read and written once, 16 bytes per
// access if rows are aligned and consist of whole packs. All except Glu,
// SoftCap and those of sinks give the same bits as the CPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/row_block.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

constexpr int64_t kMostBlocks = 132 * 16;
constexpr int kMostDims = 6;

// body(row, column) for packs of `pack` elements of rows of `n`.
template <int pack, typename Body>
__global__ void __launch_bounds__(kThreads)
    ForEachPack(int64_t rows, int64_t n, Body body) {
  const int64_t packs = n / pack;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
       i < rows * packs; i += step) {
    const int64_t row = i / packs;
    body(row, (i - row * packs) * pack);
  }
}

template <int pack, typename Body>
void RunRows(KernelStream stream, int64_t rows, int64_t n, const Body& body) {
  const int64_t threads = rows * (n / pack);
  if (threads == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((threads + kThreads - 1) / kThreads, kMostBlocks));
  Launch(ForEachPack<pack, Body>, blocks, kThreads, 0, stream, rows, n, body);
}

// A matrix, a vector as its only row, or contiguous elements as one row.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  __device__ T* at(int64_t row, int64_t column) const {
    return data + row * stride + column;
  }
};

template <typename T, typename Byte>
Rows<T> RowsOf(const BasicTensorView<Byte>& view, bool flat) {
  return {reinterpret_cast<T*>(view.data()),
          flat || view.rank() < 2 ? 0 : view.strides()[0]};
}

template <int pack, typename T>
__device__ Pack<std::remove_const_t<T>, pack> Load(const T* at) {
  return *reinterpret_cast<const Pack<std::remove_const_t<T>, pack>*>(at);
}
template <int pack, typename T>
__device__ void Store(const Pack<T, pack>& values, T* at) {
  *reinterpret_cast<Pack<T, pack>*>(at) = values;
}

// The statistic of the narrower type: f64 for f64, otherwise f32.
template <typename T, typename U>
using Computed =
    std::conditional_t<std::is_same_v<T, double> && std::is_same_v<U, double>,
                       double, float>;

template <typename T, typename U, int pack>
struct AddBody {
  Rows<const T> x;
  Rows<U> y;
  __device__ void operator()(int64_t row, int64_t column) const {
    using S = Computed<T, U>;
    const auto a = Load<pack>(x.at(row, column));
    auto b = Load<pack>(y.at(row, column));
    for (int i = 0; i < pack; ++i) {
      b.values[i] = static_cast<U>(static_cast<S>(a.values[i]) +
                                   static_cast<S>(b.values[i]));
    }
    Store<pack>(b, y.at(row, column));
  }
};

template <typename T, typename U, int pack>
struct CastBody {
  Rows<const T> x;
  Rows<U> y;
  __device__ void operator()(int64_t row, int64_t column) const {
    const auto a = Load<pack>(x.at(row, column));
    Pack<U, pack> b;
    for (int i = 0; i < pack; ++i) {
      b.values[i] = ConvertValue<U>(a.values[i]);
    }
    Store<pack>(b, y.at(row, column));
  }
};

template <typename T, int pack>
struct ScaleBody {
  StatisticOf<T> factor;
  Rows<T> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    auto a = Load<pack>(x.at(row, column));
    for (int i = 0; i < pack; ++i) {
      a.values[i] =
          static_cast<T>(static_cast<StatisticOf<T>>(a.values[i]) * factor);
    }
    Store<pack>(a, x.at(row, column));
  }
};

template <typename T, int pack>
struct SoftCapBody {
  StatisticOf<T> cap;
  Rows<T> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    auto a = Load<pack>(x.at(row, column));
    for (int i = 0; i < pack; ++i) {
      const auto value = static_cast<StatisticOf<T>>(a.values[i]);
      a.values[i] = static_cast<T>(cap * Tanh(value / cap));
    }
    Store<pack>(a, x.at(row, column));
  }
};

template <typename T, int pack>
struct FillBody {
  T value;
  Rows<T> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    Pack<T, pack> a;
    for (int i = 0; i < pack; ++i) a.values[i] = value;
    Store<pack>(a, x.at(row, column));
  }
};

template <typename T, int pack>
struct BiasBody {
  const T* bias;
  Rows<T> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    using S = StatisticOf<T>;
    const auto b = Load<pack>(bias + column);
    auto a = Load<pack>(x.at(row, column));
    for (int i = 0; i < pack; ++i) {
      a.values[i] = static_cast<T>(static_cast<S>(a.values[i]) +
                                   static_cast<S>(b.values[i]));
    }
    Store<pack>(a, x.at(row, column));
  }
};

template <typename T>
struct DropoutBody {
  Philox random;
  double probability;
  double scale;
  const int64_t* numbers;
  int64_t width;
  Rows<T> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    T& value = *x.at(row, column);
    const double uniform = random.Uniform(static_cast<uint64_t>(numbers[row]) *
                                              static_cast<uint64_t>(width) +
                                          static_cast<uint64_t>(column));
    value = ConvertValue<T>(
        uniform < probability ? 0.0 : scale * ConvertValue<double>(value));
  }
};

// Gates and factors without limits.
struct Unclamped {
  template <typename S>
  __device__ S Gate(S g) const {
    return g;
  }
  template <typename S>
  __device__ S Factor(S u) const {
    return u;
  }
  template <typename S>
  __device__ S GateGradient(S, S d) const {
    return d;
  }
  template <typename S>
  __device__ S UpGradient(S, S d) const {
    return d;
  }
};

// h of glu.h, and its derivative, for a gate from Gate(); Factor(up) multiplies
// the activation. GateGradient and UpGradient are the gradients of the operands
// from those of Gate and Factor.
struct SiluGate : Unclamped {
  template <typename S>
  __device__ S Of(S g) const {
    return g;
  }
  template <typename S>
  __device__ S Slope(S) const {
    return S{1};
  }
};

struct GeluGate : Unclamped {
  template <typename S>
  __device__ S Of(S g) const {
    const S near = Near(g);
    return near * (static_cast<S>(gelu::kLinear) +
                   static_cast<S>(gelu::kCubic) * (near * near));
  }
  template <typename S>
  __device__ S Slope(S g) const {
    const S near = Near(g);
    return static_cast<S>(gelu::kLinear) +
           static_cast<S>(3 * gelu::kCubic) * (near * near);
  }
  // Clamps to the interval outside of which h is constant; NaN stays NaN.
  template <typename S>
  __device__ S Near(S g) const {
    const S far = static_cast<S>(gelu::kFar);
    return g < -far ? -far : g > far ? far : g;
  }
};

struct ClampedGate {
  template <typename S>
  __device__ S Of(S g) const {
    return static_cast<S>(clamped_glu::kGain) * g;
  }
  template <typename S>
  __device__ S Slope(S) const {
    return static_cast<S>(clamped_glu::kGain);
  }
  // NaN stays NaN, also in Factor.
  template <typename S>
  __device__ S Gate(S g) const {
    const S limit = static_cast<S>(clamped_glu::kLimit);
    return g > limit ? limit : g;
  }
  template <typename S>
  __device__ S Factor(S u) const {
    const S limit = static_cast<S>(clamped_glu::kLimit);
    return (u < -limit ? -limit : Gate(u)) + S{1};
  }
  template <typename S>
  __device__ S GateGradient(S g, S d) const {
    return g <= static_cast<S>(clamped_glu::kLimit) ? d : S{0};
  }
  template <typename S>
  __device__ S UpGradient(S u, S d) const {
    return GateGradient(-u, GateGradient(u, d));
  }
};

template <typename T, typename Gate, int pack>
struct GluBody {
  Rows<const T> gate, up;
  Rows<T> y;
  __device__ void operator()(int64_t row, int64_t column) const {
    using S = StatisticOf<T>;
    const auto g = Load<pack>(gate.at(row, column));
    const auto u = Load<pack>(up.at(row, column));
    const Gate h;
    Pack<T, pack> out;
    for (int i = 0; i < pack; ++i) {
      const S x = h.Gate(static_cast<S>(g.values[i]));
      out.values[i] = static_cast<T>(x / (S{1} + Exp(-h.Of(x))) *
                                     h.Factor(static_cast<S>(u.values[i])));
    }
    Store<pack>(out, y.at(row, column));
  }
};

// With s = 1 / (1 + exp(-h(g))): the gradient of g s is
// s (1 + g h'(g) (1 - s)).
template <typename T, typename Gate, int pack>
struct GluGradientBody {
  Rows<const T> gradient, gate, up;
  Rows<T> gate_gradient, up_gradient;
  __device__ void operator()(int64_t row, int64_t column) const {
    using S = StatisticOf<T>;
    const auto dy = Load<pack>(gradient.at(row, column));
    const auto g = Load<pack>(gate.at(row, column));
    const auto u = Load<pack>(up.at(row, column));
    const Gate h;
    Pack<T, pack> dg, du;
    for (int i = 0; i < pack; ++i) {
      const S given = static_cast<S>(g.values[i]);
      const S up_given = static_cast<S>(u.values[i]);
      const S x = h.Gate(given);
      const S d = static_cast<S>(dy.values[i]);
      const S s = S{1} / (S{1} + Exp(-h.Of(x)));
      dg.values[i] = static_cast<T>(h.GateGradient(
          given,
          d * h.Factor(up_given) * (s * (S{1} + x * h.Slope(x) * (S{1} - s)))));
      du.values[i] = static_cast<T>(h.UpGradient(up_given, d * (x * s)));
    }
    Store<pack>(dg, gate_gradient.at(row, column));
    Store<pack>(du, up_gradient.at(row, column));
  }
};

template <typename T>
struct AddSinksBody {
  using S = StatisticOf<T>;
  const T* sinks;
  Rows<S> log_sum_exp, factors;
  __device__ void operator()(int64_t row, int64_t head) const {
    const S sink = static_cast<S>(sinks[head]);
    S& sum = *log_sum_exp.at(row, head);
    const S before = sum;
    const S larger = before > sink ? before : sink;
    const S smaller = before > sink ? sink : before;
    sum = larger + ::log1p(Exp(smaller - larger));
    *factors.at(row, head) = Exp(before - sum);
  }
};

template <typename T>
struct SinkGradientsBody {
  using S = StatisticOf<T>;
  const T* sinks;
  Rows<const S> log_sum_exp;
  Rows<S> delta;
  __device__ void operator()(int64_t row, int64_t head) const {
    const S sink = static_cast<S>(sinks[head]);
    *delta.at(row, head) *= -Exp(sink - *log_sum_exp.at(row, head));
  }
};

// Calls functor(type of x, type of y) for y of x's type or between that and its
// statistics.
template <typename Functor>
absl::Status ForPair(DType x, DType y, const Functor& functor) {
  if (x == DType::kF32 && y == DType::kBF16) {
    return functor(std::type_identity<float>(), std::type_identity<BF16>());
  }
  if (x == DType::kF32 && y == DType::kF16) {
    return functor(std::type_identity<float>(), std::type_identity<F16>());
  }
  return ForComputedType(x, [&]<typename T>(std::type_identity<T> type) {
    if (x == y) return functor(type, type);
    return functor(type, std::type_identity<StatisticOf<T>>());
  });
}

// Calls `run(x, y, flat)` on matrices, vectors, or contiguous tensors as one
// row; on other tensors by parts of their first dimension.
template <typename Run>
absl::Status ByMatrices(const ConstTensorView& x, const TensorView& y,
                        const Run& run) {
  if (x.element_count() == 0) return absl::OkStatus();
  const bool flat = x.IsContiguous() && y.IsContiguous();
  if (flat || x.rank() <= 2) return run(x, y, flat);
  for (int64_t i = 0; i < x.shape()[0]; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView x_part, x.Select(0, i));
    TESSERA_ASSIGN_OR_RETURN(const TensorView y_part, y.Select(0, i));
    TESSERA_RETURN_IF_ERROR(ByMatrices(x_part, y_part, run));
  }
  return absl::OkStatus();
}

struct Extent {
  int64_t rows = 0;
  int64_t n = 0;
};
Extent ExtentOf(const ConstTensorView& x, bool flat) {
  if (flat || x.rank() == 0) return {1, x.element_count()};
  return x.rank() == 1 ? Extent{1, x.shape()[0]}
                       : Extent{x.shape()[0], x.shape()[1]};
}

// Runs Body<T, U, pack>{x, y} on rows.
template <template <typename, typename, int> typename Body>
absl::Status RunPairs(KernelStream stream, const ConstTensorView& x,
                      const TensorView& y) {
  return ByMatrices(
      x, y, [&](const ConstTensorView& x, const TensorView& y, bool flat) {
        const auto [rows, n] = ExtentOf(x, flat);
        return ForPair(
            x.dtype(), y.dtype(),
            [&]<typename T, typename U>(std::type_identity<T>,
                                        std::type_identity<U>) {
              constexpr int kPack = std::min(kPackOf<T>, kPackOf<U>);
              const auto from = RowsOf<const T>(x, flat);
              const auto to = RowsOf<U>(y, flat);
              if (HasPacks(n, kPack, x, y)) {
                RunRows<kPack>(stream, rows, n, Body<T, U, kPack>{from, to});
              } else {
                RunRows<1>(stream, rows, n, Body<T, U, 1>{from, to});
              }
              return absl::OkStatus();
            });
      });
}

// Runs Body<T, pack>{value, x} on rows, the value by `value_of(type)`.
template <template <typename, int> typename Body, typename ValueOf>
absl::Status RunInPlace(KernelStream stream, const TensorView& x,
                        const ValueOf& value_of) {
  return ByMatrices(
      x, x, [&](const ConstTensorView&, const TensorView& x, bool flat) {
        const auto [rows, n] = ExtentOf(x, flat);
        return ForComputedType(
            x.dtype(), [&]<typename T>(std::type_identity<T> type) {
              const auto value = value_of(type);
              const auto to = RowsOf<T>(x, flat);
              if (HasPacks(n, kPackOf<T>, x)) {
                RunRows<kPackOf<T>>(stream, rows, n,
                                    Body<T, kPackOf<T>>{value, to});
              } else {
                RunRows<1>(stream, rows, n, Body<T, 1>{value, to});
              }
              return absl::OkStatus();
            });
      });
}

// The dimensions of a copy, outermost first, in words of both sides.
struct CopyDims {
  int count = 0;
  int64_t shape[kMostDims] = {};
  int64_t from[kMostDims] = {};
  int64_t to[kMostDims] = {};
};

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    CopyKernel(int64_t words, CopyDims dims, const Word* from, Word* to) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words;
       i += step) {
    int64_t rest = i, source = 0, target = 0;
    for (int dim = kMostDims - 1; dim >= 0; --dim) {
      if (dim >= dims.count) continue;
      const int64_t next = rest / dims.shape[dim];
      const int64_t at = rest - next * dims.shape[dim];
      source += at * dims.from[dim];
      target += at * dims.to[dim];
      rest = next;
    }
    to[target] = from[source];
  }
}

// Merges dimensions that follow one another on both sides; -1 for too many.
CopyDims MergedDims(const ConstTensorView& x, const TensorView& y) {
  CopyDims dims;
  for (int i = 0; i < x.rank(); ++i) {
    const int64_t size = x.shape()[i];
    if (size == 1) continue;
    const int64_t from = x.strides()[i], to = y.strides()[i];
    const int last = dims.count - 1;
    if (last >= 0 && dims.from[last] == size * from &&
        dims.to[last] == size * to) {
      dims.shape[last] *= size;
      dims.from[last] = from;
      dims.to[last] = to;
      continue;
    }
    if (dims.count == kMostDims) {
      dims.count = -1;
      return dims;
    }
    dims.shape[dims.count] = size;
    dims.from[dims.count] = from;
    dims.to[dims.count] = to;
    ++dims.count;
  }
  return dims;
}

// True if words of `width` elements can be moved instead of elements.
bool Widens(const CopyDims& dims, int64_t width) {
  if (dims.count == 0) return false;
  const int last = dims.count - 1;
  if (dims.from[last] != 1 || dims.to[last] != 1 ||
      dims.shape[last] % width != 0) {
    return false;
  }
  for (int i = 0; i < last; ++i) {
    if (dims.from[i] % width != 0 || dims.to[i] % width != 0) return false;
  }
  return true;
}

template <typename Word>
void RunCopy(KernelStream stream, int64_t words, const CopyDims& dims,
             const std::byte* from, std::byte* to) {
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((words + kThreads - 1) / kThreads, kMostBlocks));
  Launch(CopyKernel<Word>, blocks, kThreads, 0, stream, words, dims,
         reinterpret_cast<const Word*>(from), reinterpret_cast<Word*>(to));
}

// A block for each token. Its threads share the token's row of the table in the
// first-level cache.
template <typename T, int pack>
__global__ void __launch_bounds__(kThreads)
    RotateKernel(const StatisticOf<T>* table, int64_t positions, int pairs,
                 bool inverse, int heads, T* x, int64_t token_stride,
                 int64_t head_stride) {
  using S = StatisticOf<T>;
  const S* const cosines = table + blockIdx.x % positions * 2 * pairs;
  const S* const sines = cosines + pairs;
  T* const token = x + blockIdx.x * token_stride;
  const int packs = pairs / pack;
  for (int i = static_cast<int>(threadIdx.x); i < heads * packs;
       i += static_cast<int>(blockDim.x)) {
    const int head = i / packs, pair = (i - head * packs) * pack;
    T* const first = token + head * head_stride + pair;
    T* const second = first + pairs;
    auto a = Load<pack>(first), b = Load<pack>(second);
    const auto cosine = Load<pack>(cosines + pair);
    const auto sine = Load<pack>(sines + pair);
    for (int j = 0; j < pack; ++j) {
      const S left = static_cast<S>(a.values[j]);
      const S right = static_cast<S>(b.values[j]);
      const S c = cosine.values[j];
      const S s = inverse ? -sine.values[j] : sine.values[j];
      a.values[j] = static_cast<T>(left * c - right * s);
      b.values[j] = static_cast<T>(right * c + left * s);
    }
    Store<pack>(a, first);
    Store<pack>(b, second);
  }
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::Copy& call) {
  if (call.x.element_count() == 0) return absl::OkStatus();
  CopyDims dims = MergedDims(call.x, call.y);
  if (dims.count < 0) {
    return absl::UnimplementedError(absl::StrCat(
        "Copy of ", DimsToString(call.x.shape()), " with strides ",
        DimsToString(call.x.strides()), " and ", DimsToString(call.y.strides()),
        " has more than ", kMostDims, " separate dimensions; copy parts."));
  }
  const int64_t size = SizeInBytes(call.x.dtype());
  int64_t words = call.x.element_count();
  const int64_t width = 16 / size;
  const auto addresses = reinterpret_cast<uintptr_t>(call.x.data()) |
                         reinterpret_cast<uintptr_t>(call.y.data());
  if (addresses % 16 == 0 && Widens(dims, width)) {
    const int last = dims.count - 1;
    dims.shape[last] /= width;
    for (int i = 0; i < last; ++i) {
      dims.from[i] /= width;
      dims.to[i] /= width;
    }
    RunCopy<Pack<uint64_t, 2>>(cuda.stream, words / width, dims, call.x.data(),
                               call.y.data());
  } else if (size == 1) {
    RunCopy<uint8_t>(cuda.stream, words, dims, call.x.data(), call.y.data());
  } else if (size == 2) {
    RunCopy<uint16_t>(cuda.stream, words, dims, call.x.data(), call.y.data());
  } else if (size == 4) {
    RunCopy<uint32_t>(cuda.stream, words, dims, call.x.data(), call.y.data());
  } else {
    RunCopy<uint64_t>(cuda.stream, words, dims, call.x.data(), call.y.data());
  }
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::Add& call) {
  return RunPairs<AddBody>(cuda.stream, call.x, call.y);
}

absl::Status Run(CudaBackend& cuda, const op::Cast& call) {
  return RunPairs<CastBody>(cuda.stream, call.x, call.y);
}

absl::Status Run(CudaBackend& cuda, const op::Scale& call) {
  return RunInPlace<ScaleBody>(
      cuda.stream, call.x, [&]<typename T>(std::type_identity<T>) {
        return static_cast<StatisticOf<T>>(call.factor);
      });
}

absl::Status Run(CudaBackend& cuda, const op::SoftCap& call) {
  return RunInPlace<SoftCapBody>(cuda.stream, call.x,
                                 [&]<typename T>(std::type_identity<T>) {
                                   return static_cast<StatisticOf<T>>(call.cap);
                                 });
}

absl::Status Run(CudaBackend& cuda, const op::Fill& call) {
  return RunInPlace<FillBody>(cuda.stream, call.x,
                              [&]<typename T>(std::type_identity<T>) {
                                return ConvertValue<T>(call.value);
                              });
}

absl::Status Run(CudaBackend& cuda, const op::AddBias& call) {
  const int64_t rows = call.x.shape()[0], n = call.x.shape()[1];
  return ForComputedType(
      call.x.dtype(), [&]<typename T>(std::type_identity<T>) {
        const T* const values = DataOf<T>(call.bias);
        const auto to = RowsOf<T>(call.x, /*flat=*/false);
        if (HasPacks(n, kPackOf<T>, call.x, call.bias)) {
          RunRows<kPackOf<T>>(cuda.stream, rows, n,
                              BiasBody<T, kPackOf<T>>{values, to});
        } else {
          RunRows<1>(cuda.stream, rows, n, BiasBody<T, 1>{values, to});
        }
        return absl::OkStatus();
      });
}

absl::Status Run(CudaBackend& cuda, const op::Dropout& call) {
  // The number of each row of x, in memory of the kernels.
  const int64_t* rows = call.mask.rows.data();
  if constexpr (!::tessera::TESSERA_KERNELS::kIsEmulated) {
    const auto bytes = std::as_bytes(call.mask.rows);
    TESSERA_ASSIGN_OR_RETURN(
        std::byte* const numbers,
        cuda.scratch.Reserve(static_cast<int64_t>(bytes.size())));
    TESSERA_RETURN_IF_ERROR(cuda.queue.Copy(bytes, {numbers, bytes.size()}));
    rows = reinterpret_cast<const int64_t*>(numbers);
  }
  const double probability = call.mask.probability;
  const int64_t n = call.x.shape()[1];
  return ForComputedType(
      call.x.dtype(), [&]<typename T>(std::type_identity<T>) {
        RunRows<1>(cuda.stream, call.x.shape()[0], n,
                   DropoutBody<T>{Philox(call.mask.key), probability,
                                  1 / (1 - probability), rows, n,
                                  RowsOf<T>(call.x, /*flat=*/false)});
        return absl::OkStatus();
      });
}

namespace {

template <typename Functor>
absl::Status ForGate(GluKind kind, const Functor& functor) {
  if (kind == GluKind::kGeGlu) return functor(std::type_identity<GeluGate>());
  if (kind == GluKind::kClampedGlu) {
    return functor(std::type_identity<ClampedGate>());
  }
  return functor(std::type_identity<SiluGate>());
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::Glu& call) {
  const int64_t rows = call.y.shape()[0], n = call.y.shape()[1];
  return ForGate(call.kind, [&]<typename Gate>(std::type_identity<Gate>) {
    return ForComputedType(call.y.dtype(), [&]<typename T>(
                                               std::type_identity<T>) {
      const auto run = [&]<int pack>(std::integral_constant<int, pack>) {
        RunRows<pack>(cuda.stream, rows, n,
                      GluBody<T, Gate, pack>{RowsOf<const T>(call.gate, false),
                                             RowsOf<const T>(call.up, false),
                                             RowsOf<T>(call.y, false)});
      };
      if (HasPacks(n, kPackOf<T>, call.gate, call.up, call.y)) {
        run(std::integral_constant<int, kPackOf<T>>());
      } else {
        run(std::integral_constant<int, 1>());
      }
      return absl::OkStatus();
    });
  });
}

absl::Status Run(CudaBackend& cuda, const op::GluGradient& call) {
  const int64_t rows = call.gate.shape()[0], n = call.gate.shape()[1];
  return ForGate(call.kind, [&]<typename Gate>(std::type_identity<Gate>) {
    return ForComputedType(
        call.gate.dtype(), [&]<typename T>(std::type_identity<T>) {
          const auto run = [&]<int pack>(std::integral_constant<int, pack>) {
            RunRows<pack>(cuda.stream, rows, n,
                          GluGradientBody<T, Gate, pack>{
                              RowsOf<const T>(call.gradient, false),
                              RowsOf<const T>(call.gate, false),
                              RowsOf<const T>(call.up, false),
                              RowsOf<T>(call.gate_gradient, false),
                              RowsOf<T>(call.up_gradient, false)});
          };
          if (HasPacks(n, kPackOf<T>, call.gradient, call.gate, call.up,
                       call.gate_gradient, call.up_gradient)) {
            run(std::integral_constant<int, kPackOf<T>>());
          } else {
            run(std::integral_constant<int, 1>());
          }
          return absl::OkStatus();
        });
  });
}

absl::Status Run(CudaBackend& cuda, const op::Rotate& call) {
  const int64_t tokens = call.x.shape()[0], heads = call.x.shape()[1];
  const int64_t positions = call.table.shape()[0];
  const int64_t pairs = call.table.shape()[1] / 2;
  if (call.x.element_count() == 0 || pairs == 0) return absl::OkStatus();
  if (tokens > INT32_MAX || heads * pairs > INT32_MAX) {
    return absl::UnimplementedError(absl::StrCat(
        "Rotate of ", tokens, " tokens of ", heads, " heads with ", pairs,
        " pairs; kernels take 2^31-1 tokens, and as many pairs of a token."));
  }
  return ForComputedType(
      call.x.dtype(), [&]<typename T>(std::type_identity<T>) {
        const auto run = [&]<int pack>(std::integral_constant<int, pack>) {
          // As many threads for the last packs of a token as for the others.
          const int64_t packs = heads * (pairs / pack);
          const int64_t turns = (packs + kThreads - 1) / kThreads;
          const int64_t warps = ((packs + turns - 1) / turns + 31) / 32;
          Launch(RotateKernel<T, pack>, static_cast<unsigned>(tokens),
                 static_cast<unsigned>(warps * 32), 0, cuda.stream,
                 DataOf<StatisticOf<T>>(call.table), positions,
                 static_cast<int>(pairs), call.inverse, static_cast<int>(heads),
                 DataOf<T>(call.x), call.x.strides()[0], call.x.strides()[1]);
        };
        if (HasPacks(pairs, kPackOf<T>, call.x, call.table)) {
          run(std::integral_constant<int, kPackOf<T>>());
        } else {
          run(std::integral_constant<int, 1>());
        }
        return absl::OkStatus();
      });
}

absl::Status Run(CudaBackend& cuda, const op::AddSinks& call) {
  return ForComputedType(call.sinks.dtype(), [&]<typename T>(
                                                 std::type_identity<T>) {
    using S = StatisticOf<T>;
    RunRows<1>(cuda.stream, call.factors.shape()[0], call.factors.shape()[1],
               AddSinksBody<T>{DataOf<T>(call.sinks),
                               RowsOf<S>(call.log_sum_exp, false),
                               RowsOf<S>(call.factors, false)});
    return absl::OkStatus();
  });
}

absl::Status Run(CudaBackend& cuda, const op::SinkGradients& call) {
  return ForComputedType(call.sinks.dtype(), [&]<typename T>(
                                                 std::type_identity<T>) {
    using S = StatisticOf<T>;
    RunRows<1>(cuda.stream, call.delta.shape()[0], call.delta.shape()[1],
               SinkGradientsBody<T>{DataOf<T>(call.sinks),
                                    RowsOf<const S>(call.log_sum_exp, false),
                                    RowsOf<S>(call.delta, false)});
    return absl::OkStatus();
  });
}

void AddElementwiseKernels(CudaKernelTable& table) {
  table.Add<op::Copy, op::Add, op::Scale, op::SoftCap, op::Fill, op::Cast,
            op::AddBias, op::Glu, op::GluGradient, op::Rotate, op::Dropout,
            op::AddSinks, op::SinkGradients>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
