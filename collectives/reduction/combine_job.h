// CombineJob: one call of Combine as the kernels see it. Internal.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_
#define TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::collectives::internal {

enum class Fold : uint8_t { kAdd, kMultiply, kMin, kMax };

struct CombineJob {
  DType dtype;
  Fold fold;
  bool stream;   // Stores go past the caches where addresses allow it.
  double scale;  // 1.0: none.
  int64_t divisor;
  const void* const* sources;
  size_t source_count;
  void* const* destinations;
  size_t destination_count;
  int64_t count;
};

// By the best instruction set that this processor has. The job's type is one
// of the family, its counts are positive; the caller fences streaming stores.
void CombineFloats(const CombineJob& job);
void CombineIntegers(const CombineJob& job);

}  // namespace tessera::collectives::internal

#endif  // TESSERA_COLLECTIVES_REDUCTION_COMBINE_JOB_H_
