// The optimizer's kernels on the CPU: one pass of a step over a checked range
// of a parameter (StepJob, RunStep), and the statistics of gradients
// (StatisticsOf).
//
// Internal to offload/optimizer. The kernels run in the calling thread with the
// best instruction set of the processor. Results are bit-identical on every
// instruction set.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_KERNELS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::offload {

// Elements of a tile, which fits in the first-level cache. Larger blocks of
// 8-bit moments are separate tiles.
inline constexpr int64_t kTile = 512;
inline constexpr int64_t kLargestTile = 2048;

enum class StepRule : uint8_t { kAdamW, kMomentum, kNesterov, kPlain, kLion };

// The storage of a moment, with the values of MomentType, whose header kernels
// do not include.
enum class StoredMoment : uint8_t { kF64, kF32, kBF16, kBlockwise8 };

struct MomentPointer {
  StoredMoment type = StoredMoment::kF32;
  int64_t block = 0;  // A divisor or a multiple of kTile.
  std::byte* values = nullptr;
  float* largest = nullptr;
};

// The factors that are constant during a step, in the type of the computation.
template <typename S>
struct Numbers {
  S gradient_scale = 1;  // unscale * clip_factor.
  S decay_in_gradient = 0;
  S kept = 1;  // The parameter's factor under decoupled decay.
  S beta1 = 0, fresh1 = 1;
  S beta2 = 0, fresh2 = 1;
  S root_correction = 1;  // 1 / sqrt(1 - beta2^t).
  S epsilon = 0;
  S rate = 0;

  template <typename T>
  Numbers<T> As() const {
    const auto as = [](S value) { return static_cast<T>(value); };
    return {as(gradient_scale), as(decay_in_gradient),
            as(kept),           as(beta1),
            as(fresh1),         as(beta2),
            as(fresh2),         as(root_correction),
            as(epsilon),        as(rate)};
  }
};
using StepNumbers = Numbers<double>;

struct StepJob {
  StepRule rule = StepRule::kAdamW;
  StepNumbers numbers;

  DType parameter_type = DType::kF32;
  DType gradient_type = DType::kF32;
  DType copy_type = DType::kBF16;
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  MomentPointer first = {}, second = {};
  std::byte* copy = nullptr;  // May be null.
  int64_t count = 0;

  bool streams_copy = false;      // Stores bypass the caches.
  bool rounds_at_random = false;  // bf16 moments.
  uint32_t random_key = 0;        // Same for all elements of a step.
  uint32_t random_index = 0;      // Index of the first element.
};

// Updates one range. The result does not depend on how the range is partitioned
// (at block boundaries, if it has blocks).
void RunStep(const StepJob& job);

struct RunStatistics {
  double sum_of_squares = 0;  // of the finite elements
  int64_t non_finite = 0;
};

// Sums are in f64, in an order that a GPU's warp can follow too: 32 partial
// sums, each over the elements whose indices are congruent modulo kPartialSums,
// are added as a tree. Every kElementsOfTerm elements are one term; terms are
// added in the same way.
inline constexpr int64_t kPartialSums = 32;
inline constexpr int64_t kElementsOfTerm = 4096;

// The statistics of one term: at most kElementsOfTerm elements of f64, f32,
// bf16 or f16.
RunStatistics StatisticsOf(DType dtype, const std::byte* data, int64_t count);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_KERNELS_H_
