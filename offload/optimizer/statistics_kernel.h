// The sum of squares of a run of gradients, and how many are not finite.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STATISTICS_KERNEL_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STATISTICS_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::offload {

struct RunStatistics {
  double sum_of_squares = 0;  // Of the finite ones.
  int64_t non_finite = 0;
};

// Of `count` elements of f64, f32, bf16 or f16. The sum has 32 partial sums in
// f64, of the elements at places congruent modulo 32, added up as a tree.
RunStatistics StatisticsOf(DType dtype, const std::byte* data, int64_t count);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STATISTICS_KERNEL_H_
