#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/cuda/kernel.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "collectives/cuda/collective_kernels.h"

namespace tessera::collectives::TESSERA_KERNELS {
namespace {

using tessera::TESSERA_KERNELS::Launch;

constexpr int kThreads = 256;
// Several thread blocks for each multiprocessor of the largest GPUs.
constexpr int64_t kMostBlocks = 2048;

unsigned BlocksFor(int64_t items) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMostBlocks));
}

bool IsAligned(uintptr_t addresses, size_t to) { return addresses % to == 0; }

template <typename T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};
template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// The type in which elements are combined.
template <typename T>
using Wide = std::conditional_t<kIsSmallFloat<T>, float, T>;

// Bitwise folds require integer types.
enum class Step { kAdd, kMultiply, kMin, kMax, kAnd, kOr, kXor };

// Integers wrap.
template <Step step, typename W>
__device__ W Apply(W a, W b) {
  if constexpr (step == Step::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (step == Step::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (step == Step::kAnd) {
    return static_cast<W>(a & b);
  } else if constexpr (step == Step::kOr) {
    return static_cast<W>(a | b);
  } else if constexpr (step == Step::kXor) {
    return static_cast<W>(a ^ b);
  } else if constexpr (std::is_integral_v<W>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<W>(step == Step::kAdd ? x + y : x * y);
  } else {
    return step == Step::kAdd ? a + b : a * b;
  }
}

template <typename W>
__device__ W Divided(W x, int64_t divisor) {
  if constexpr (std::is_integral_v<W>) {
    return divisor == 1 ? x : static_cast<W>(static_cast<int64_t>(x) / divisor);
  } else {
    if (divisor != 1) x = x / static_cast<W>(divisor);
    return x != x ? std::numeric_limits<W>::quiet_NaN() : x;
  }
}

// Elements of a source, in the type in which they are combined.
template <typename T, int kCount>
struct Scaled {
  __device__ Scaled(const FoldJob& fold, int source, int64_t at) {
    const auto* const packs =
        static_cast<const Pack<T, kCount>*>(fold.sources[source]);
    const Pack<T, kCount> pack = packs[at];
    const bool scales = fold.scale != 1.0;
    const auto factor = static_cast<Wide<T>>(fold.scale);
    for (int k = 0; k < kCount; ++k) {
      const auto x = ConvertValue<Wide<T>>(pack.values[k]);
      values[k] = scales ? Apply<Step::kMultiply>(x, factor) : x;
    }
  }

  Wide<T> values[kCount];
};

// Folds group `at`, of kCount elements, of all sources.
template <typename T, Step step, int kCount>
__device__ void FoldAt(const FoldJob& fold, int64_t at) {
  Scaled<T, kCount> sums(fold, 0, at);
  for (int s = 1; s < fold.source_count; ++s) {
    const Scaled<T, kCount> next(fold, s, at);
    for (int k = 0; k < kCount; ++k) {
      sums.values[k] = Apply<step>(sums.values[k], next.values[k]);
    }
  }
  Pack<T, kCount> result;
  for (int k = 0; k < kCount; ++k) {
    result.values[k] = ConvertValue<T>(Divided(sums.values[k], fold.divisor));
  }
  for (int t = 0; t < fold.target_count; ++t) {
    static_cast<Pack<T, kCount>*>(fold.targets[t])[at] = result;
  }
}

// Folds the first `packs` packs, then the remaining elements one by one.
template <typename T, Step step>
__global__ void FoldKernel(const FoldJob fold, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < packs; i += stride) {
    FoldAt<T, step, kPack<T>>(fold, i);
  }
  for (int64_t i = packs * kPack<T> + first; i < fold.count; i += stride) {
    FoldAt<T, step, 1>(fold, i);
  }
}

template <typename T, Step step>
void LaunchFoldOf(KernelStream stream, const FoldJob& fold) {
  uintptr_t addresses = 0;
  for (int s = 0; s < fold.source_count; ++s) {
    addresses |= reinterpret_cast<uintptr_t>(fold.sources[s]);
  }
  for (int t = 0; t < fold.target_count; ++t) {
    addresses |= reinterpret_cast<uintptr_t>(fold.targets[t]);
  }
  const int64_t packs = IsAligned(addresses, 16) ? fold.count / kPack<T> : 0;
  const unsigned blocks =
      BlocksFor(std::max(packs, fold.count - packs * kPack<T>));
  Launch(FoldKernel<T, step>, blocks, kThreads, 0, stream, fold, packs);
}

template <typename Word>
struct WordMove {
  __device__ explicit WordMove(const Move& move)
      : from(static_cast<const Word*>(move.from)),
        to(static_cast<Word*>(move.to)),
        back_from(static_cast<const Word*>(move.back_from)),
        back_to(static_cast<Word*>(move.back_to)) {}

  // Moves word i, and word `back_i` of the second range, if they exist.
  __device__ void At(int64_t i, bool exists, int64_t back_i,
                     bool back_exists) const {
    Word x = {}, y = {};
    if (exists) x = from[i];
    if (back_exists) y = back_from[back_i];
    if (exists) to[i] = x;
    if (back_exists) back_to[back_i] = y;
  }

  const Word* from;
  Word* to;
  const Word* back_from;
  Word* back_to;
};

// blockIdx.y is the index of the move. Copies whole words, then the remaining
// bytes.
template <typename Word>
__global__ void MoveKernel(const Moves moves) {
  const Move move = moves.moves[blockIdx.y];
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t size = sizeof(Word);
  const int64_t words = move.bytes / size;
  const int64_t back_words = move.back_bytes / size;
  const WordMove<Word> by_words(move);
  for (int64_t i = first; i < words || i < back_words; i += stride) {
    by_words.At(i, i < words, i, i < back_words);
  }
  const WordMove<unsigned char> by_bytes(move);
  by_bytes.At(words * size + first, first < move.bytes % size,
              back_words * size + first, first < move.back_bytes % size);
}

template <typename Word>
void LaunchMovesBy(KernelStream stream, const Moves& moves, int64_t longest) {
  const dim3 grid(
      BlocksFor(longest / static_cast<int64_t>(sizeof(Word)) / moves.count),
      static_cast<unsigned>(moves.count));
  Launch(MoveKernel<Word>, grid, kThreads, 0, stream, moves);
}

}  // namespace

void LaunchFold(KernelStream stream, const FoldJob& fold) {
  DispatchDType(fold.dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      switch (fold.op) {
        case ReduceOp::kBitAnd:
          return LaunchFoldOf<T, Step::kAnd>(stream, fold);
        case ReduceOp::kBitOr:
          return LaunchFoldOf<T, Step::kOr>(stream, fold);
        case ReduceOp::kBitXor:
          return LaunchFoldOf<T, Step::kXor>(stream, fold);
        default:
          break;
      }
    }
    if constexpr (IsReducible(kDTypeOf<T>)) {
      switch (fold.op) {
        case ReduceOp::kProduct:
          return LaunchFoldOf<T, Step::kMultiply>(stream, fold);
        case ReduceOp::kMin:
          return LaunchFoldOf<T, Step::kMin>(stream, fold);
        case ReduceOp::kMax:
          return LaunchFoldOf<T, Step::kMax>(stream, fold);
        default:
          return LaunchFoldOf<T, Step::kAdd>(stream, fold);
      }
    }
  });
}

void LaunchMoves(KernelStream stream, const Moves& moves) {
  if (moves.count == 0) return;
  uintptr_t addresses = 0;
  int64_t longest = 0;
  for (int i = 0; i < moves.count; ++i) {
    const Move& move = moves.moves[static_cast<size_t>(i)];
    addresses |= reinterpret_cast<uintptr_t>(move.from) |
                 reinterpret_cast<uintptr_t>(move.to) |
                 reinterpret_cast<uintptr_t>(move.back_from) |
                 reinterpret_cast<uintptr_t>(move.back_to);
    longest = std::max({longest, move.bytes, move.back_bytes});
  }
  if (IsAligned(addresses, 16)) {
    LaunchMovesBy<Pack<uint64_t, 2>>(stream, moves, longest);
  } else if (IsAligned(addresses, 4)) {
    LaunchMovesBy<uint32_t>(stream, moves, longest);
  } else {
    LaunchMovesBy<uint8_t>(stream, moves, longest);
  }
}

}  // namespace tessera::collectives::TESSERA_KERNELS
