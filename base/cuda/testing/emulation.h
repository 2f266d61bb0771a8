// Emulates CUDA kernels on the CPU, for g++ and clang; kernel.h includes it
// there. Each CUDA thread is a fiber. The threads of a block take turns on the
// host thread that launches the kernel, and blocks run one after another.
//
//   {
//     const ScopedEmulation scoped({.order = EmulationOrder::kRandom,
//                                   .seed = 3});
//     Launch(Kernel, grid, block, 0, nullptr, arguments...);
//   }
//
// It always detects:
// - threads of a warp in different collectives, and a thread that is not in its
//   own mask
// - a barrier that threads of a block reach at different source locations
// - a deadlock, such as collectives with different masks, with the waiting
//   threads and their locations
// - reads of unwritten shared memory, which is initialised to NaN
// It then prints the block, the thread and the source locations, and aborts.
//
// With ThreadSanitizer it also detects conflicting accesses to shared or global
// memory, by two threads of a block without a barrier between them or by two
// blocks; with AddressSanitizer, accesses outside of host arrays.
//
// Orders are adversarial: in random order, the first warp that can run does so
// for as long as it can. Correct kernels give the same bits in every order.
//
// It does not model time, bank conflicts, occupancy, or a GPU's weak memory
// ordering.
#ifndef TESSERA_BASE_CUDA_TESTING_EMULATION_H_
#define TESSERA_BASE_CUDA_TESTING_EMULATION_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/cuda/stream.h"

// CUDA's keywords, with CUDA's names and namespaces.

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1)
      : x(a), y(b), z(c) {}
};

inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace tessera::emulated {

enum class EmulationOrder {
  kForward,  // Threads and blocks take turns, by number.
  kReverse,  // The last thread that can run does.
  kRandom,   // By warp priorities that change occasionally.
};

struct EmulationOptions {
  EmulationOrder order = EmulationOrder::kForward;
  uint64_t seed = 1;  // Seeds random orders.
};

// Sets the options of launches by this host thread until it is destroyed.
class ScopedEmulation {
 public:
  explicit ScopedEmulation(const EmulationOptions& options);
  ~ScopedEmulation();
  ScopedEmulation(const ScopedEmulation&) = delete;
  ScopedEmulation& operator=(const ScopedEmulation&) = delete;

 private:
  const EmulationOptions before_;
};

// Implementation of the functions below.

using Where = std::source_location;

inline constexpr size_t kLargestStaticShared = 48 << 10;
inline constexpr size_t kLargestShared = 227 << 10;
inline constexpr size_t kPayloadWords = 4;  // Maximum per lane.

// Runs `thread` on every thread of the grid.
void RunGrid(dim3 grid, dim3 block, size_t dynamic_shared,
             const std::function<void()>& thread);

// The block's shared array for a source location, which `place` identifies.
void* SharedArray(const void* place, size_t bytes);
void* DynamicShared();

void AwaitBlock(const Where& where);

// The value that a lane passes to a collective.
using Payload = std::array<uint64_t, kPayloadWords>;

template <typename T>
Payload PayloadOf(const T& value) {
  static_assert(sizeof(T) <= sizeof(Payload) &&
                std::is_trivially_copyable_v<T>);
  Payload payload = {};
  std::memcpy(payload.data(), &value, sizeof(T));
  return payload;
}

// The payloads of all lanes of a mask, after all of them have arrived. Valid
// until the thread's next collective.
struct Payloads {
  const Payload* lanes = nullptr;
  uint32_t came = 0;  // Lanes of the mask that had not exited.

  template <typename T>
  T Of(unsigned lane) const {
    const Payload payload = Lane(lane);
    T value;
    std::memcpy(&value, payload.data(), sizeof(T));
    return value;
  }

 private:
  Payload Lane(unsigned lane) const;
};
Payloads AwaitLanes(uint32_t mask, const Payload& payload, const char* what,
                    const Where& where);
unsigned Lane();

[[noreturn]] void FailKernel(const char* what, const Where& where);

template <typename T>
T Shuffle(uint32_t mask, T value, unsigned from, const char* what,
          const Where& where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  const Payloads all = AwaitLanes(mask, PayloadOf(value), what, where);
  return from < 32 && (mask >> from & 1) != 0 ? all.template Of<T>(from)
                                              : value;
}

// Returns `from` if it is in this lane's segment of `width` lanes, otherwise
// this lane.
inline unsigned InSegment(int from, int width) {
  const auto lane = static_cast<int>(Lane());
  const int begin = lane / width * width;
  return static_cast<unsigned>(from < begin || from >= begin + width ? lane
                                                                     : from);
}

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t dynamic_shared, KernelStream, Arguments&&... arguments) {
  const std::tuple<std::remove_cvref_t<Parameters>...> values(
      std::forward<Arguments>(arguments)...);
  RunGrid(grid, block, dynamic_shared,
          [&] { std::apply([&](const auto&... v) { kernel(v...); }, values); });
}

}  // namespace tessera::emulated

#define TESSERA_SHARED(type, name, count) \
  static const char name##_place = 0;     \
  type* const name = static_cast<type*>(  \
      ::tessera::emulated::SharedArray(&name##_place, sizeof(type) * (count)))
#define TESSERA_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::tessera::emulated::DynamicShared())

inline void __syncthreads(
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  tessera::emulated::AwaitBlock(where);
}
inline void __syncwarp(
    uint32_t mask = 0xffffffffu,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  tessera::emulated::AwaitLanes(mask, {}, "syncwarp", where);
}

template <typename T>
T __shfl_sync(
    uint32_t mask, T value, int from, int width = 32,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const int begin = static_cast<int>(tessera::emulated::Lane()) / width * width;
  return tessera::emulated::Shuffle(
      mask, value, static_cast<unsigned>(begin + (from & (width - 1))), "shfl",
      where);
}
template <typename T>
T __shfl_up_sync(
    uint32_t mask, T value, unsigned delta, int width = 32,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const int from =
      static_cast<int>(tessera::emulated::Lane()) - static_cast<int>(delta);
  return tessera::emulated::Shuffle(
      mask, value, tessera::emulated::InSegment(from, width), "shfl_up", where);
}
template <typename T>
T __shfl_down_sync(
    uint32_t mask, T value, unsigned delta, int width = 32,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const int from =
      static_cast<int>(tessera::emulated::Lane()) + static_cast<int>(delta);
  return tessera::emulated::Shuffle(mask, value,
                                    tessera::emulated::InSegment(from, width),
                                    "shfl_down", where);
}
template <typename T>
T __shfl_xor_sync(
    uint32_t mask, T value, int lanes, int width = 32,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const int from = static_cast<int>(tessera::emulated::Lane()) ^ lanes;
  return tessera::emulated::Shuffle(mask, value,
                                    tessera::emulated::InSegment(from, width),
                                    "shfl_xor", where);
}

inline uint32_t __ballot_sync(
    uint32_t mask, int predicate,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const auto all = tessera::emulated::AwaitLanes(
      mask, tessera::emulated::PayloadOf(predicate), "ballot", where);
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((all.came >> lane & 1) != 0 && all.Of<int>(lane) != 0)
      votes |= 1u << lane;
  }
  return votes;
}
inline int __any_sync(
    uint32_t mask, int predicate,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(
    uint32_t mask, int predicate,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  return __ballot_sync(mask, predicate == 0 ? 1 : 0, where) == 0 ? 1 : 0;
}
template <typename T>
uint32_t __match_any_sync(
    uint32_t mask, T value,
    tessera::emulated::Where where = tessera::emulated::Where::current()) {
  const auto all = tessera::emulated::AwaitLanes(
      mask, tessera::emulated::PayloadOf(value), "match_any", where);
  uint32_t equal = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((all.came >> lane & 1) != 0 && all.template Of<T>(lane) == value) {
      equal |= 1u << lane;
    }
  }
  return equal;
}

// Atomics with relaxed ordering, like CUDA's.
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
  } else {
    T before = *at, after;
    do {
      after = before + value;
    } while (!__atomic_compare_exchange(at, &before, &after, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
  }
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected,
            std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return expected;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < value &&
         !__atomic_compare_exchange_n(at, &before, value, false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < before &&
         !__atomic_compare_exchange_n(at, &before, value, false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __fma_rn(double x, double y, double z) {
  return std::fma(x, y, z);
}

inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline int min(int x, int y) { return y < x ? y : x; }
inline int max(int x, int y) { return x < y ? y : x; }
inline unsigned min(unsigned x, unsigned y) { return y < x ? y : x; }
inline unsigned max(unsigned x, unsigned y) { return x < y ? y : x; }
inline long min(long x, long y) { return y < x ? y : x; }
inline long max(long x, long y) { return x < y ? y : x; }
inline long long min(long long x, long long y) { return y < x ? y : x; }
inline long long max(long long x, long long y) { return x < y ? y : x; }
inline float min(float x, float y) { return std::fmin(x, y); }
inline float max(float x, float y) { return std::fmax(x, y); }
inline double min(double x, double y) { return std::fmin(x, y); }
inline double max(double x, double y) { return std::fmax(x, y); }

#define TESSERA_VECTOR_TYPES(type, name)                              \
  struct alignas(2 * sizeof(type)) name##2 {                          \
    type x, y;                                                        \
  };                                                                  \
  struct alignas(sizeof(type) == 8 ? 16 : 4 * sizeof(type)) name##4 { \
    type x, y, z, w;                                                  \
  };                                                                  \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }    \
  inline name##4 make_##name##4(type x, type y, type z, type w) {     \
    return {x, y, z, w};                                              \
  }
TESSERA_VECTOR_TYPES(float, float)
TESSERA_VECTOR_TYPES(double, double)
TESSERA_VECTOR_TYPES(int, int)
TESSERA_VECTOR_TYPES(unsigned, uint)
TESSERA_VECTOR_TYPES(unsigned short, ushort)
#undef TESSERA_VECTOR_TYPES

#endif  // TESSERA_BASE_CUDA_TESTING_EMULATION_H_
