#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/cuda/four.h"
#include "base/cuda/kernel.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "offload/optimizer/cuda_kernels.h"
#include "offload/optimizer/dynamic_map.h"
#include "offload/optimizer/kernels.h"

namespace tessera::offload::TESSERA_KERNELS {
namespace {

using namespace tessera::TESSERA_KERNELS;  // NOLINT: the language of kernels.

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kLargestBlock = 2048;
constexpr int kMostThreads = kLargestBlock / 4;
constexpr int kMostWarps = kMostThreads / kWarp;

// The values of DynamicMap for each decade, in shared memory. Each array has a
// word per decade, so lanes have no bank conflicts.
struct DecadeTable {
  float first[8];
  float span[8];
  float slope[8];
  float next[8];  // The threshold of the next decade.
};

template <bool kSigned>
constexpr DecadeTable MakeDecadeTable() {
  using Map = DynamicMap<kSigned>;
  DecadeTable table = {};
  for (int i = 0; i < 8; ++i) {
    table.first[i] = Map::First(i);
    table.span[i] = Map::Span(i);
    // 1 is above the last steps of decade 6.
    table.slope[i] = Map::Slope(i < 6 ? i : 6);
    table.next[i] = i < 6 ? Map::Threshold(i + 1) : 2.0f;
  }
  return table;
}

struct DecadeTables {
  DecadeTable of_first;
  DecadeTable of_second;
};

constexpr DecadeTables kDecades = {MakeDecadeTable<true>(),
                                   MakeDecadeTable<false>()};

constexpr int MomentsOf(StepRule rule) {
  if (rule == StepRule::kPlain) return 0;
  return rule == StepRule::kAdamW ? 2 : 1;
}

// Updates the moments and returns the new parameter. Every operation is rounded
// separately, as in step_kernel.cc.
template <StepRule rule, typename S>
__device__ S Stepped(const Numbers<S>& n, S p, S gradient, S& m, S& v) {
  S g = gradient * n.gradient_scale;
  if (n.decay_in_gradient != 0) g = g + p * n.decay_in_gradient;
  S direction = g;
  if constexpr (rule == StepRule::kLion) {
    const S mean = Canonical(m * n.beta1 + g * n.fresh1);
    m = Canonical(m * n.beta2 + g * n.fresh2);
    // The sign; a NaN or 0 stays as it is.
    direction = std::fabs(mean) > 0 ? std::copysign(S{1}, mean) : mean;
  } else if constexpr (rule != StepRule::kPlain) {
    m = Canonical(m * n.beta1 + g * n.fresh1);
    direction = m;
  }
  if constexpr (rule == StepRule::kNesterov) direction = g + m * n.beta1;
  if constexpr (rule == StepRule::kAdamW) {
    v = Canonical(v * n.beta2 + (g * n.fresh2) * g);
    direction = m / (std::sqrt(v) * n.root_correction + n.epsilon);
  }
  return Canonical(p * n.kept - direction * n.rate);
}

template <typename S>
__device__ void LoadGradient(const StepJob& job, int64_t at, int64_t count,
                             S (&g)[4]) {
  if constexpr (std::is_same_v<S, float>) {
    if (job.gradient_type == DType::kBF16) {
      return LoadFour(reinterpret_cast<const BF16*>(job.gradient) + at, count,
                      g);
    }
    if (job.gradient_type == DType::kF16) {
      return LoadFour(reinterpret_cast<const F16*>(job.gradient) + at, count,
                      g);
    }
  }
  LoadFour(reinterpret_cast<const S*>(job.gradient) + at, count, g);
}

__device__ void StoreCopy(const StepJob& job, int64_t at, int64_t count,
                          const float (&p)[4]) {
  if (job.copy == nullptr) return;
  if (job.copy_type == DType::kBF16) {
    StoreFour(p, reinterpret_cast<BF16*>(job.copy) + at, count);
  } else {
    StoreFour(p, reinterpret_cast<F16*>(job.copy) + at, count);
  }
}

// The value of a code. The exponent of a rank as f32 is its decade, the
// mantissa its position there.
template <bool kSigned>
__device__ float ValueOf(const DecadeTable& table, uint8_t code) {
  const int distance = kSigned ? code - 127 : code;
  if (distance == 0) return 0;
  const int rank = kSigned ? (distance < 0 ? -distance : distance) : code + 1;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(rank));
  const uint32_t decade = (bits >> 23) - (kSigned ? 127 : 128);
  const float place =
      std::bit_cast<float>((bits & 0x7fffff) | 0x3f800000) - 1.0f;
  const float value = table.first[decade] + table.span[decade] * place;
  return distance < 0 ? -value : value;
}

// The rank, except the zero rank, of a magnitude from 0 to 1 (and an ulp), in
// the low nine bits.
template <bool kSigned>
__device__ int RankOf(const DecadeTable& table, float x) {
  using Map = DynamicMap<kSigned>;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23);
  int decade = (exponent * 5 + (Map::kExponentOffset - 5 * 127)) >> 4;
  decade = decade < 0 ? 0 : (decade > 6 ? 6 : decade);
  if (x >= table.next[decade]) ++decade;
  // Steps(decade) is a power of two, so setting its exponent suffices.
  const float steps = std::bit_cast<float>(
      static_cast<uint32_t>(decade + (kSigned ? 127 : 128)) << 23);
  const float offset = steps * (8.0f / 9.0f) - 0.5f;
  float rank = x * table.slope[decade] + offset;
  const float most = (steps + steps) - 1.0f;
  rank = rank < steps ? steps : rank;
  rank = rank > most ? most : rank;
  constexpr float kOne = Map::Threshold(Map::kDecades);
  if (x >= kOne) rank = static_cast<float>(Map::kOneRank);
  // Rounds to the nearest integer, in the low bits of 2^23 + rank.
  return std::bit_cast<int>(rank + 0x1p23f) & 0x1ff;
}

template <bool kSigned>
__device__ uint8_t CodeOf(const DecadeTable& table, float value, float x) {
  using Map = DynamicMap<kSigned>;
  const int rank = RankOf<kSigned>(table, x);
  if constexpr (kSigned) {
    constexpr float kZero = Map::Threshold(0);
    const int distance = x < kZero ? 0 : rank;
    const int code = Map::kZeroCode + (value < 0 ? -distance : distance);
    return static_cast<uint8_t>(code < 0 ? 0 : code);
  } else {
    // A positive value must stay positive, since it becomes a divisor.
    return static_cast<uint8_t>(value == 0 ? 0 : rank - Map::kZeroRank);
  }
}

// 32 random bits of an element: Hash of floats-inl.h.
__device__ uint32_t HashOf(uint32_t key, uint32_t index) {
  uint32_t x = index ^ key;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Rounds values `x` of a bf16 moment to nearest even or stochastically.
template <bool kFirst>
__device__ void StoreBF16(const StepJob& job, BF16* to, int64_t at,
                          int64_t count, const float (&x)[4]) {
  if (!job.rounds_at_random) return StoreFour(x, to + at, count);
  Four<BF16> four;
  for (int i = 0; i < 4; ++i) {
    const uint32_t noise =
        HashOf(job.random_key, job.random_index + static_cast<uint32_t>(at) +
                                   static_cast<uint32_t>(i));
    const uint32_t bits =
        std::bit_cast<uint32_t>(x[i]) + (kFirst ? noise >> 16 : noise & 0xffff);
    four.values[i] = BF16::FromBits(static_cast<uint16_t>(bits >> 16));
  }
  StoreElements(four, to + at, count);
}

// The index of the block of an element; block sizes are powers of two.
__device__ int64_t BlockAt(const MomentPointer& moment, int64_t at) {
  return at >> (31 - __clz(static_cast<int>(moment.block)));
}

template <bool kFirst, bool kBlocks, typename S>
__device__ void LoadMoment(const MomentPointer& moment,
                           const DecadeTable& table, int64_t at, int64_t count,
                           S (&x)[4]) {
  if constexpr (std::is_same_v<S, float>) {
    if (moment.type == StoredMoment::kBF16) {
      return LoadFour(reinterpret_cast<const BF16*>(moment.values) + at, count,
                      x);
    }
    if (kBlocks && moment.type == StoredMoment::kBlockwise8) {
      if (count <= 0) return;
      // If the scale is not finite, every product becomes the same NaN.
      const float largest = moment.largest[BlockAt(moment, at)];
      const float scale = largest <= std::numeric_limits<float>::max()
                              ? largest
                              : std::numeric_limits<float>::quiet_NaN();
      const Four<uint8_t> codes = LoadElements(
          reinterpret_cast<const uint8_t*>(moment.values) + at, count);
      for (int i = 0; i < 4; ++i) {
        x[i] = i < count ? ValueOf<kFirst>(table, codes.values[i]) * scale : 0;
      }
      return;
    }
  }
  LoadFour(reinterpret_cast<const S*>(moment.values) + at, count, x);
}

template <bool kFirst, typename S>
__device__ void StoreMoment(const StepJob& job, const MomentPointer& moment,
                            int64_t at, int64_t count, const S (&x)[4]) {
  if constexpr (std::is_same_v<S, float>) {
    if (moment.type == StoredMoment::kBF16) {
      return StoreBF16<kFirst>(job, reinterpret_cast<BF16*>(moment.values), at,
                               count, x);
    }
    if (moment.type == StoredMoment::kBlockwise8) return;
  }
  StoreFour(x, reinterpret_cast<S*>(moment.values) + at, count);
}

// The bits of the largest magnitude of four values: NaN is above infinity.
__device__ int LargestBits(const float (&x)[4]) {
  int largest = 0;
  for (int i = 0; i < 4; ++i) {
    const int bits = std::bit_cast<int>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// The maximum over `threads` neighbouring lanes of the warp.
__device__ int LargestOfLanes(int largest, int threads) {
  for (int distance = threads < kWarp ? threads / 2 : kWarp / 2; distance > 0;
       distance /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  return largest;
}

// Threads that share a block of the moment; 1 if it has none.
__device__ int ThreadsOfBlock(const MomentPointer& moment) {
  return moment.type == StoredMoment::kBlockwise8
             ? static_cast<int>(moment.block) / 4
             : 1;
}

// The maximum over the block of this thread, from the maxima of warps.
__device__ int LargestOfBlock(int largest, int threads, const int* of_warps) {
  const int warps = threads / kWarp;
  const int first = static_cast<int>(threadIdx.x) / kWarp & ~(warps - 1);
  for (int warp = 0; warps > 1 && warp < warps; ++warp) {
    const int other = of_warps[first + warp];
    largest = other > largest ? other : largest;
  }
  return largest;
}

template <bool kFirst>
__device__ void StoreCodes(const MomentPointer& moment,
                           const DecadeTable& table, int64_t at, int64_t count,
                           int largest_bits, const float (&x)[4]) {
  const auto largest = std::bit_cast<float>(largest_bits);
  const bool is_usable =
      largest > 0 && largest <= std::numeric_limits<float>::max();
  // The reciprocal of a subnormal could overflow, that of 2^100 loses no bits.
  const float up = largest < 0x1p-100f ? 0x1p64f : 1.0f;
  const float down = 1.0f / (largest * up);
  Four<uint8_t> codes;
  for (int i = 0; i < 4; ++i) {
    codes.values[i] = DynamicMap<kFirst>::kZeroCode;
    if (is_usable) {
      const float magnitude = std::fabs(x[i]);
      codes.values[i] = CodeOf<kFirst>(table, x[i], (magnitude * up) * down);
    }
  }
  StoreElements(codes, reinterpret_cast<uint8_t*>(moment.values) + at, count);
  if ((at & (moment.block - 1)) != 0) return;
  const float unusable =
      largest == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  moment.largest[BlockAt(moment, at)] = is_usable ? largest : unusable;
}

// The shared memory of threads that process 8-bit moments.
struct Shared {
  DecadeTables tables;
  int largest_of_first[kMostWarps];
  int largest_of_second[kMostWarps];
};

// Copies the tables. All threads of the block must call it.
__device__ void FillTables(const DecadeTables& tables, Shared& shared) {
  constexpr unsigned kWords = sizeof(DecadeTables) / sizeof(float);
  const auto* const from = reinterpret_cast<const float*>(&tables);
  auto* const to = reinterpret_cast<float*>(&shared.tables);
  for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) to[i] = from[i];
  __syncthreads();
}

// Stores the 8-bit moments of all threads of the block, which must call it
// together.
template <int kMoments>
__device__ void StoreBlocks(const StepJob& job, Shared& shared, int64_t at,
                            int64_t count, const float (&m)[4],
                            const float (&v)[4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int threads1 = ThreadsOfBlock(job.first);
  const int threads2 = kMoments > 1 ? ThreadsOfBlock(job.second) : 1;
  const int largest1 = LargestOfLanes(LargestBits(m), threads1);
  const int largest2 = LargestOfLanes(LargestBits(v), threads2);
  if (threadIdx.x % kWarp == 0) {
    shared.largest_of_first[warp] = largest1;
    shared.largest_of_second[warp] = largest2;
  }
  __syncthreads();
  if (count <= 0) return;
  if (threads1 > 1) {
    StoreCodes<true>(
        job.first, shared.tables.of_first, at, count,
        LargestOfBlock(largest1, threads1, shared.largest_of_first), m);
  }
  if (kMoments > 1 && threads2 > 1) {
    StoreCodes<false>(
        job.second, shared.tables.of_second, at, count,
        LargestOfBlock(largest2, threads2, shared.largest_of_second), v);
  }
}

// Each thread updates four elements. With 8-bit moments a block of threads has
// whole blocks of moments.
template <typename S, StepRule rule, bool kBlocks>
__global__ void __launch_bounds__(kBlocks ? kMostThreads : kThreads)
    StepKernel(const StepJob job, const Numbers<S> numbers,
               const DecadeTables tables) {
  constexpr int kMoments = MomentsOf(rule);
  const int64_t at = 4 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const int64_t count = job.count - at;
  TESSERA_SHARED(Shared, shared, 1);
  if constexpr (kBlocks) FillTables(tables, shared[0]);
  const DecadeTables& decades = shared[0].tables;
  if (!kBlocks && count <= 0) return;
  S p[4], g[4], m[4] = {}, v[4] = {};
  S* const parameter = reinterpret_cast<S*>(job.parameter) + at;
  LoadFour(parameter, count, p);
  LoadGradient(job, at, count, g);
  if constexpr (kMoments > 0) {
    LoadMoment<true, kBlocks>(job.first, decades.of_first, at, count, m);
  }
  if constexpr (kMoments > 1) {
    LoadMoment<false, kBlocks>(job.second, decades.of_second, at, count, v);
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) p[i] = Stepped<rule>(numbers, p[i], g[i], m[i], v[i]);
  }
  StoreFour(p, parameter, count);
  if constexpr (std::is_same_v<S, float>) StoreCopy(job, at, count, p);
  if constexpr (kMoments > 0) StoreMoment<true>(job, job.first, at, count, m);
  if constexpr (kMoments > 1) StoreMoment<false>(job, job.second, at, count, v);
  if constexpr (kBlocks) StoreBlocks<kMoments>(job, shared[0], at, count, m, v);
}

// The number of threads per block: whole warps, whole blocks of moments, and no
// more than the work requires.
int ThreadsFor(const StepJob& job) {
  const auto all = (job.count + 3) / 4;
  const auto work = static_cast<int>(std::min<int64_t>(kThreads, all));
  const int block =
      static_cast<int>(std::max(job.first.block, job.second.block)) / 4;
  return std::max((work + kWarp - 1) / kWarp * kWarp, std::max(block, kWarp));
}

template <typename S, StepRule rule, bool kBlocks>
void LaunchTyped(KernelStream stream, const StepJob& job) {
  const auto threads = static_cast<unsigned>(ThreadsFor(job));
  const int64_t elements = 4 * int64_t{threads};
  const auto grid =
      static_cast<unsigned>((job.count + elements - 1) / elements);
  Launch(StepKernel<S, rule, kBlocks>, grid, threads, 0, stream, job,
         job.numbers.As<S>(), kDecades);
}

template <StepRule rule>
void LaunchRule(KernelStream stream, const StepJob& job) {
  if (job.parameter_type == DType::kF64) {
    return LaunchTyped<double, rule, false>(stream, job);
  }
  if constexpr (MomentsOf(rule) > 0) {
    if (job.first.type == StoredMoment::kBlockwise8 ||
        job.second.type == StoredMoment::kBlockwise8) {
      return LaunchTyped<float, rule, true>(stream, job);
    }
  }
  LaunchTyped<float, rule, false>(stream, job);
}

// Adds the lanes' sums as a tree; the result is in lane 0.
template <typename T>
__device__ T SumOfLanes(T sum) {
  for (int half = kWarp / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, half);
  }
  return sum;
}

// A warp sums a term: lane i the elements at indices congruent to i. Lanes read
// neighbouring elements, so a warp's access is a whole line for any address.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StatisticsKernel(const T* data, int64_t count, RunStatistics* terms) {
  using S = decltype(Widened(T()));
  constexpr int kAhead = 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t term = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t at = term * kElementsOfTerm;
  const int64_t end = std::min(count, at + kElementsOfTerm);
  double squares = 0;
  int64_t non_finite = 0;
  const auto add = [&](T x) {
    const S value = Widened(x);
    const bool is_finite = std::fabs(value) <= std::numeric_limits<S>::max();
    const double finite = is_finite ? static_cast<double>(value) : 0.0;
    squares = squares + finite * finite;
    non_finite += is_finite ? 0 : 1;
  };
  int64_t i = at + lane;
  for (; i + (kAhead - 1) * kWarp < end; i += kAhead * kWarp) {
    T ahead[kAhead];
    for (int k = 0; k < kAhead; ++k) ahead[k] = data[i + k * kWarp];
    for (int k = 0; k < kAhead; ++k) add(ahead[k]);
  }
  for (; i < end; i += kWarp) add(data[i]);
  squares = SumOfLanes(squares);
  non_finite = SumOfLanes(non_finite);
  if (lane == 0 && at < count) terms[term] = {squares, non_finite};
}

// One warp sums all terms.
__global__ void __launch_bounds__(kWarp)
    SumTermsKernel(const RunStatistics* terms, int64_t count,
                   RunStatistics* result) {
  double squares = 0;
  int64_t non_finite = 0;
  for (int64_t i = threadIdx.x; i < count; i += kWarp) {
    const RunStatistics term = terms[i];
    squares = squares + term.sum_of_squares;
    non_finite += term.non_finite;
  }
  squares = SumOfLanes(squares);
  non_finite = SumOfLanes(non_finite);
  if (threadIdx.x == 0) *result = {squares, non_finite};
}

template <typename T>
void MeasureTyped(KernelStream stream, const std::byte* data, int64_t count,
                  RunStatistics* terms) {
  const int64_t warps = TermsOf(count);
  constexpr int64_t kWarps = kThreads / kWarp;
  const auto threads =
      static_cast<unsigned>(std::min(kWarps, warps) * int64_t{kWarp});
  Launch(StatisticsKernel<T>,
         static_cast<unsigned>((warps + kWarps - 1) / kWarps), threads, 0,
         stream, reinterpret_cast<const T*>(data), count, terms);
}

}  // namespace

void LaunchStep(KernelStream stream, const StepJob& job) {
  if (job.count <= 0) return;
  switch (job.rule) {
    case StepRule::kAdamW:
      return LaunchRule<StepRule::kAdamW>(stream, job);
    case StepRule::kMomentum:
      return LaunchRule<StepRule::kMomentum>(stream, job);
    case StepRule::kNesterov:
      return LaunchRule<StepRule::kNesterov>(stream, job);
    case StepRule::kPlain:
      return LaunchRule<StepRule::kPlain>(stream, job);
    case StepRule::kLion:
      return LaunchRule<StepRule::kLion>(stream, job);
  }
}

void LaunchStatistics(KernelStream stream, DType dtype, const std::byte* data,
                      int64_t count, RunStatistics* terms,
                      RunStatistics* result) {
  const int64_t term_count = TermsOf(count);
  RunStatistics* const sums = term_count == 1 ? result : terms;
  if (term_count > 0) {
    if (dtype == DType::kF64) {
      MeasureTyped<double>(stream, data, count, sums);
    } else if (dtype == DType::kF32) {
      MeasureTyped<float>(stream, data, count, sums);
    } else if (dtype == DType::kBF16) {
      MeasureTyped<BF16>(stream, data, count, sums);
    } else {
      MeasureTyped<F16>(stream, data, count, sums);
    }
  }
  if (term_count == 1) return;
  Launch(SumTermsKernel, 1, kWarp, 0, stream, terms, term_count, result);
}

}  // namespace tessera::offload::TESSERA_KERNELS
