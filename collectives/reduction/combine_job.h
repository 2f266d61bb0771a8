// CombineJob: the arguments of Combine for its kernels. Internal.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_
#define TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::collectives::internal {

// Bitwise folds require integer types.
enum class Fold : uint8_t { kAdd, kMultiply, kMin, kMax, kAnd, kOr, kXor };

struct CombineJob {
  DType dtype;
  Fold fold;
  bool stream;   // Use non-temporal stores if addresses allow it.
  double scale;  // 1.0: no scaling.
  int64_t divisor;
  const void* const* sources;
  size_t source_count;
  void* const* destinations;
  size_t destination_count;
  int64_t count;
};

// Run with the best instruction set of this processor. The job's type must
// belong to the family and its counts must be positive; the caller fences
// streaming stores.
void CombineFloats(const CombineJob& job);
void CombineIntegers(const CombineJob& job);

}  // namespace tessera::collectives::internal

#endif  // TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_
