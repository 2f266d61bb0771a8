// StepJob: a checked range of a parameter, as the kernels take it.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_JOB_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_JOB_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::offload {

// Elements of a tile: a step passes over them in the first-level cache. Larger
// blocks of 8-bit moments are tiles of their own.
inline constexpr int64_t kTile = 512;
inline constexpr int64_t kLargestTile = 2048;

enum class StepRule : uint8_t { kAdamW, kMomentum, kNesterov, kPlain };

// How a moment lies in memory. As MomentType, which a kernel does not depend
// on.
enum class StoredMoment : uint8_t { kF64, kF32, kBF16, kBlockwise8 };

struct MomentPointer {
  StoredMoment type = StoredMoment::kF32;
  int64_t block = 0;  // A divisor or a multiple of kTile.
  std::byte* values = nullptr;
  float* largest = nullptr;
};

// Every number that a step multiplies with, once for all elements.
struct StepNumbers {
  double gradient_scale = 1;  // Unscale times clip factor.
  double decay_in_gradient = 0;
  double kept = 1;  // Of the parameter, after decoupled decay.
  double beta1 = 0, fresh1 = 1;
  double beta2 = 0, fresh2 = 1;
  double root_correction = 1;  // 1 / sqrt(1 - beta2^t).
  double epsilon = 0;
  double rate = 0;
};

struct StepJob {
  StepRule rule = StepRule::kAdamW;
  StepNumbers numbers;

  DType parameter_type = DType::kF32;
  DType gradient_type = DType::kF32;
  DType copy_type = DType::kBF16;
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  MomentPointer first = {}, second = {};
  std::byte* copy = nullptr;  // Null: none.
  int64_t count = 0;

  bool streams_copy = false;      // Past the caches.
  bool rounds_at_random = false;  // bf16 moments.
  uint32_t random_key = 0;        // Of the step.
  uint32_t random_index = 0;      // Of the first element.
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_JOB_H_
