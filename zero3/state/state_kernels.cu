#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/cuda/four.h"
#include "base/cuda/kernel.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "offload/codec/block_kernels.h"
#include "zero3/state/state_kernels.h"

namespace tessera::zero3::TESSERA_KERNELS {
namespace {

using namespace tessera::TESSERA_KERNELS;  // NOLINT: the language of kernels.

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kThreads = 256;
// Each warp processes an int8 block, and each lane four elements of it.
constexpr int64_t kBlock = 4 * kWarp;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// to += from: 16-bit types are added in f32 and rounded once.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddKernel(const T* from, T* to, int64_t count) {
  using V = decltype(Widened(T()));
  const int64_t at = 4 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (at >= count) return;
  V a[4], b[4];
  LoadFour(to + at, count - at, a);
  LoadFour(from + at, count - at, b);
  for (int i = 0; i < 4; ++i) a[i] = Canonical(a[i] + b[i]);
  StoreFour(a, to + at, count - at);
}

// 2^64 for a scale whose inverse could overflow.
__device__ float LiftOf(float scale) {
  return scale != 0 && scale < 0x1p-64f ? 0x1p64f : 1.0f;
}

__device__ bool IsFinite(float x) {
  return x <= std::numeric_limits<float>::max() &&
         x >= -std::numeric_limits<float>::max();
}

// The addresses of the four codes of a lane and of the scale of its block.
struct Place {
  __device__ Place(int64_t elements)
      : blocks((elements + kBlock - 1) / kBlock),
        block((int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp),
        at(block * kBlock + 4 * static_cast<int>(threadIdx.x % kWarp)),
        count(elements - at) {}

  template <typename Byte>
  __device__ Byte* Codes(Byte* encoded) const {
    return encoded + 4 * blocks + at;
  }

  int64_t blocks;
  int64_t block;
  int64_t at;     // The first element of the lane.
  int64_t count;  // Elements from there on; may be 0 or negative.
};

// Encodes the values of a lane; all lanes of the warp must call it. Codes of
// missing elements are 0, which clears the padding.
__device__ void EncodeFour(const Place& place, const float (&x)[4],
                           std::byte* encoded) {
  int largest = 0;
  for (int i = 0; i < 4; ++i) {
    const int bits = std::bit_cast<int>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  if (place.count <= 0) return;
  const auto scale = std::bit_cast<float>(largest);
  const bool is_finite = IsFinite(scale);
  const float lift = LiftOf(scale);
  const float inverse = is_finite && scale != 0 ? 127.0f / (scale * lift) : 0;
  Four<int8_t> codes;
  for (int i = 0; i < 4; ++i) {
    // Added to a small float it leaves the nearest integer in the low bits.
    constexpr float kMagic = 0x1.8p23f;
    const float v = is_finite ? (x[i] * lift) * inverse : 0.0f;
    codes.values[i] = static_cast<int8_t>(std::bit_cast<int>(v + kMagic) -
                                          std::bit_cast<int>(kMagic));
  }
  // An encoding is aligned to 4 and ends with whole words.
  *reinterpret_cast<Four<int8_t>*>(place.Codes(encoded)) = codes;
  if (place.at % kBlock == 0) {
    reinterpret_cast<float*>(encoded)[place.block] = is_finite ? scale : kNan;
  }
}

__device__ void DecodeFour(const Place& place, const std::byte* encoded,
                           float (&x)[4]) {
  const float scale = reinterpret_cast<const float*>(encoded)[place.block];
  const auto codes =
      *reinterpret_cast<const Four<int8_t>*>(place.Codes(encoded));
  const bool is_finite = IsFinite(scale);
  const float lift = LiftOf(scale);
  const float high = scale * lift;
  const float low = 0.0f - high;
  // The smallest step that reaches the scale.
  float step = high / 127.0f;
  if (step * 127.0f < high) {
    step = std::bit_cast<float>(std::bit_cast<uint32_t>(step) + 1);
  }
  const float drop = 1.0f / lift;
  for (int i = 0; i < 4; ++i) {
    float v = static_cast<float>(codes.values[i]) * step;
    v = v > low ? v : low;
    v = v < high ? v : high;
    x[i] = is_finite ? v * drop : kNan;
  }
}

// The sum of all sources in f32, in their order.
__device__ void SumFour(const Place& place, const Int8Sources& sources,
                        float (&sum)[4]) {
  if (place.count <= 0) return;
  for (int s = 0; s < sources.count; ++s) {
    float x[4];
    DecodeFour(place, sources.encodings[s], x);
    for (int i = 0; i < 4; ++i) sum[i] = sum[i] + x[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EncodeKernel(const T* values, int64_t elements, std::byte* encoded) {
  const Place place(elements);
  float x[4];
  LoadFour(values + place.at, place.count, x);
  EncodeFour(place, x, encoded);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumKernel(const Int8Sources sources, float divisor, int64_t elements,
              T* values) {
  const Place place(elements);
  if (place.count <= 0) return;
  float sum[4] = {};
  if (sources.count == 1) {
    DecodeFour(place, sources.encodings[0], sum);
  } else {
    SumFour(place, sources, sum);
  }
  for (int i = 0; i < 4; ++i) {
    if (divisor != 1) sum[i] = sum[i] / divisor;
    sum[i] = Canonical(sum[i]);
  }
  StoreFour(sum, values + place.at, place.count);
}

__global__ void __launch_bounds__(kThreads)
    SumEncodedKernel(const Int8Sources sources, int64_t elements,
                     std::byte* encoded) {
  const Place place(elements);
  float sum[4] = {};
  SumFour(place, sources, sum);
  for (int i = 0; i < 4; ++i) {
    if (i >= place.count) sum[i] = 0;
  }
  EncodeFour(place, sum, encoded);
}

// The parts of an encoding of NF4 (offload/codec/lossy_codec.cc): after the
// header the scale of each block of 64 elements, or a mean and a step for each
// 256 blocks and a code for each block; then 4 bits for each element. Byte j of
// a block has the codes of its elements j and j + 32.
struct Nf4Encoding {
  Nf4Encoding(bool is_double, const std::byte* encoded, int64_t elements)
      : is_double(is_double),
        blocks((elements + kNf4Elements - 1) / kNf4Elements),
        scales(encoded + offload::kCodecHeaderBytes) {
    const int64_t groups = (blocks + kNf4Group - 1) / kNf4Group;
    scale_codes = reinterpret_cast<const int8_t*>(scales + 8 * groups);
    codes = reinterpret_cast<const uint8_t*>(
        is_double ? scales + 8 * groups + blocks : scales + 4 * blocks);
  }

  __device__ float ScaleOf(int64_t block) const {
    const auto* const floats = reinterpret_cast<const float*>(scales);
    if (!is_double) return floats[block];
    const double mean = floats[block / kNf4Group * 2];
    const double step = floats[block / kNf4Group * 2 + 1];
    const double scale = mean + step * static_cast<double>(scale_codes[block]);
    const double most = std::numeric_limits<float>::max();
    return static_cast<float>(scale < 0 ? 0 : scale < most ? scale : most);
  }

  static constexpr int64_t kNf4Elements = offload::kNf4Block;
  static constexpr int64_t kNf4Group = offload::kScalesOfGroup;

  bool is_double;
  int64_t blocks;
  const std::byte* scales;
  const int8_t* scale_codes;
  const uint8_t* codes;
};

// An argument of its own, so that it is indexed in constant memory.
struct Nf4Levels {
  float of[16];
};

// Finite values stay finite.
template <typename T>
__device__ T Saturated(float x) {
  if constexpr (std::is_same_v<T, BF16> || std::is_same_v<T, F16>) {
    const float most = std::is_same_v<T, F16>
                           ? 65504.0f
                           : std::bit_cast<float>(uint32_t{0x7f7f0000});
    return Narrowed<T>(x < -most ? -most : x < most ? x : most);
  } else {
    return x;
  }
}

// A thread for each byte of codes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DecodeNf4Kernel(const Nf4Encoding encoding, const Nf4Levels levels,
                    int64_t elements, T* values) {
  constexpr int64_t kHalf = Nf4Encoding::kNf4Elements / 2;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = i / kHalf;
  const int64_t low = block * Nf4Encoding::kNf4Elements + i % kHalf;
  if (low >= elements) return;
  const float scale = encoding.ScaleOf(block);
  const int both = encoding.codes[i];
  values[low] = Saturated<T>(levels.of[both & 15] * scale);
  const int64_t high = low + kHalf;
  if (high >= elements) return;
  values[high] = Saturated<T>(levels.of[both >> 4] * scale);
}

// Elements of a matrix, in the types of a kernel.
template <typename T, typename S>
struct Elements {
  explicit Elements(const MatrixElements& of)
      : values(reinterpret_cast<const T*>(of.values)),
        count(of.count),
        offset(of.offset),
        width(of.width),
        scale(static_cast<S>(of.scale)) {}

  int64_t rows() const { return (offset + count + width - 1) / width; }
  int64_t groups() const { return (rows() + kRowsOfGroup - 1) / kRowsOfGroup; }
  __device__ S At(int64_t i) const { return Widened(values[i]) * scale; }
  __device__ double SquareAt(int64_t i) const {
    const double x = At(i);
    return x * x;
  }

  const T* values;
  int64_t count;
  int64_t offset;
  int64_t width;
  S scale;
};

template <typename S>
__device__ void AddTo(S& moment, double weight, double sum) {
  moment = static_cast<S>(static_cast<double>(moment) + weight * sum);
}

// A warp for each row.
template <typename T, typename S>
__global__ void __launch_bounds__(kThreads)
    RowsKernel(const Elements<T, S> elements, int64_t row_count, double weight,
               S* rows) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  if (row >= row_count) return;
  const int64_t first = row * elements.width - elements.offset;
  const int64_t begin = first < 0 ? 0 : first;
  const int64_t end = first + elements.width < elements.count
                          ? first + elements.width
                          : elements.count;
  double sum = 0;
  for (int64_t i = begin + lane; i < end; i += kWarp) {
    sum = sum + elements.SquareAt(i);
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum = sum + __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (lane == 0) AddTo(rows[row], weight, sum);
}

// A thread for each column of each group of rows: sums[group][column].
template <typename T, typename S>
__global__ void __launch_bounds__(kThreads)
    GroupsKernel(const Elements<T, S> elements, int64_t numbers, double* sums) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= numbers) return;
  const int64_t group = at / elements.width;
  int64_t i = group * kRowsOfGroup * elements.width + at % elements.width -
              elements.offset;
  double sum = 0;
  for (int64_t row = 0; row < kRowsOfGroup; ++row, i += elements.width) {
    if (i >= 0 && i < elements.count) sum = sum + elements.SquareAt(i);
  }
  sums[at] = sum;
}

template <typename S>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(const double* sums, int64_t groups, int64_t width,
                  double weight, S* columns) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  double sum = 0;
  for (int64_t group = 0; group < groups; ++group) {
    sum = sum + sums[group * width + column];
  }
  AddTo(columns[column], weight, sum);
}

// One block.
template <typename S>
__global__ void __launch_bounds__(kMeanLanes)
    DivideByMeanKernel(const S* rows, int64_t row_count, double least,
                       S* columns, int64_t column_count) {
  TESSERA_SHARED(double, sums, kMeanLanes);
  const auto lane = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = lane; i < row_count; i += kMeanLanes) {
    sum = sum + static_cast<double>(rows[i]);
  }
  sums[lane] = sum;
  __syncthreads();
  for (int distance = kMeanLanes / 2; distance > 0; distance /= 2) {
    if (lane < distance) sums[lane] = sums[lane] + sums[lane + distance];
    __syncthreads();
  }
  const double mean = sums[0] / static_cast<double>(row_count);
  const S divisor = static_cast<S>(mean < least ? least : mean);
  for (int64_t i = lane; i < column_count; i += kMeanLanes) {
    columns[i] = columns[i] / divisor;
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const Elements<T, S> elements, const S* rows, const S* columns,
                 S least, S factor, S* update) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= elements.count) return;
  const int64_t at = elements.offset + i;
  S moment = rows[at / elements.width];
  if (columns != nullptr) moment = moment * columns[at % elements.width];
  moment = moment < least ? least : moment;
  update[i] = elements.At(i) / std::sqrt(moment) * factor;
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads)
    ScaleKernel(S factor, S* values, int64_t count, T* copy) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  values[i] = values[i] * factor;
  if (copy != nullptr) copy[i] = Narrowed<T>(Canonical(values[i]));
}

struct Shape {
  unsigned grid;
  unsigned threads;
};

// Four elements per thread, in whole warps; a block has at most as many warps
// as there are int8 blocks.
Shape ShapeFor(int64_t elements) {
  const int64_t warps = (elements + kBlock - 1) / kBlock;
  const int64_t of_block = std::min<int64_t>(kThreads / kWarp, warps);
  return {static_cast<unsigned>((warps + of_block - 1) / of_block),
          static_cast<unsigned>(of_block * kWarp)};
}

// Runs a kernel on `elements` elements.
template <typename... Parameters, typename... Arguments>
void Run(void (*kernel)(Parameters...), KernelStream stream, int64_t elements,
         const Arguments&... arguments) {
  if (elements <= 0) return;
  const Shape shape = ShapeFor(elements);
  Launch(kernel, shape.grid, shape.threads, 0, stream, arguments...);
}

// Calls `run` with a value of the type, which has an int8 form.
template <typename Function>
void WithType(DType dtype, const Function& run) {
  if (dtype == DType::kF32) return run(float());
  if (dtype == DType::kBF16) return run(BF16());
  run(F16());
}

// The same with the type of moments: f64 for f64, otherwise f32.
template <typename Function>
void WithMoments(DType dtype, const Function& run) {
  if (dtype == DType::kF64) return run(double(), double());
  WithType(dtype, [&]<typename T>(T) { run(T(), float()); });
}

unsigned BlocksFor(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

static_assert(kLanes == kWarp);

void LaunchDecodeNf4(KernelStream stream, bool is_double,
                     const std::byte* encoded, DType dtype, int64_t elements,
                     std::byte* values) {
  const Nf4Encoding encoding(is_double, encoded, elements);
  const auto levels = std::bit_cast<Nf4Levels>(offload::kNf4Levels);
  WithMoments(dtype, [&]<typename T, typename S>(T, S) {
    Launch(DecodeNf4Kernel<T>,
           BlocksFor(encoding.blocks * Nf4Encoding::kNf4Elements / 2), kThreads,
           0, stream, encoding, levels, elements, reinterpret_cast<T*>(values));
  });
}

void LaunchScale(KernelStream stream, DType dtype, double factor,
                 std::byte* values, int64_t count, DType copy_dtype,
                 std::byte* copy) {
  const auto launch = [&]<typename S, typename T>(S, T) {
    Launch(ScaleKernel<S, T>, BlocksFor(count), kThreads, 0, stream,
           static_cast<S>(factor), reinterpret_cast<S*>(values), count,
           reinterpret_cast<T*>(copy));
  };
  if (dtype == DType::kF64) return launch(double(), double());
  WithType(copy == nullptr ? DType::kF32 : copy_dtype,
           [&]<typename T>(T) { launch(float(), T()); });
}

int64_t GroupSums(const MatrixElements& elements) {
  return Elements<float, float>(elements).groups() * elements.width;
}

void LaunchSumSquares(KernelStream stream, const MatrixElements& elements,
                      double row_weight, std::byte* rows, double column_weight,
                      std::byte* columns, double* sums) {
  WithMoments(elements.dtype, [&]<typename T, typename S>(T, S) {
    const Elements<T, S> typed(elements);
    Launch(RowsKernel<T, S>, BlocksFor(typed.rows() * kWarp), kThreads, 0,
           stream, typed, typed.rows(), row_weight, reinterpret_cast<S*>(rows));
    if (columns == nullptr) return;
    const int64_t numbers = typed.groups() * typed.width;
    Launch(GroupsKernel<T, S>, BlocksFor(numbers), kThreads, 0, stream, typed,
           numbers, sums);
    Launch(ColumnsKernel<S>, BlocksFor(typed.width), kThreads, 0, stream, sums,
           typed.groups(), typed.width, column_weight,
           reinterpret_cast<S*>(columns));
  });
}

void LaunchDivideByMean(KernelStream stream, DType dtype, const std::byte* rows,
                        int64_t row_count, double least, std::byte* columns,
                        int64_t column_count) {
  WithMoments(dtype, [&]<typename T, typename S>(T, S) {
    Launch(DivideByMeanKernel<S>, 1, kMeanLanes, 0, stream,
           reinterpret_cast<const S*>(rows), row_count, least,
           reinterpret_cast<S*>(columns), column_count);
  });
}

void LaunchUpdate(KernelStream stream, const MatrixElements& elements,
                  const std::byte* rows, const std::byte* columns, double least,
                  double factor, std::byte* update) {
  WithMoments(elements.dtype, [&]<typename T, typename S>(T, S) {
    Launch(UpdateKernel<T, S>, BlocksFor(elements.count), kThreads, 0, stream,
           Elements<T, S>(elements), reinterpret_cast<const S*>(rows),
           reinterpret_cast<const S*>(columns), static_cast<S>(least * least),
           static_cast<S>(factor), reinterpret_cast<S*>(update));
  });
}

void LaunchAdd(KernelStream stream, DType dtype, const std::byte* from,
               std::byte* to, int64_t count) {
  const auto add = [&]<typename T>(T) {
    Run(AddKernel<T>, stream, count, reinterpret_cast<const T*>(from),
        reinterpret_cast<T*>(to), count);
  };
  dtype == DType::kF64 ? add(double()) : WithType(dtype, add);
}

void LaunchEncodeInt8(KernelStream stream, DType dtype, const std::byte* values,
                      int64_t elements, std::byte* encoded) {
  WithType(dtype, [&]<typename T>(T) {
    Run(EncodeKernel<T>, stream, elements, reinterpret_cast<const T*>(values),
        elements, encoded);
  });
}

void LaunchSumInt8(KernelStream stream, const Int8Sources& sources,
                   float divisor, DType dtype, int64_t elements,
                   std::byte* values) {
  WithType(dtype, [&]<typename T>(T) {
    Run(SumKernel<T>, stream, elements, sources, divisor, elements,
        reinterpret_cast<T*>(values));
  });
}

void LaunchSumInt8Encoded(KernelStream stream, const Int8Sources& sources,
                          int64_t elements, std::byte* encoded) {
  Run(SumEncodedKernel, stream, elements, sources, elements, encoded);
}

}  // namespace tessera::zero3::TESSERA_KERNELS
