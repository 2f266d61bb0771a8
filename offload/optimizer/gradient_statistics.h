// GradientStatistics: measures the norm of gradients and the number of
// non-finite elements in one pass, for clipping and dynamic loss scaling.
//
//   GradientStatistics all;
//   for (const ConstTypedSpan& gradient : gradients) {
//     TESSERA_ASSIGN_OR_RETURN(GradientStatistics one,
//                              MeasureGradient(gradient, pool));
//     all.Add(one);
//   }
//   if (!all.IsFinite()) ...  // Lower the loss scale and skip the step.
//   scale.clip_factor = ClipFactor(all.Norm() * unscale, max_norm);
#ifndef TESSERA_OFFLOAD_OPTIMIZER_GRADIENT_STATISTICS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_GRADIENT_STATISTICS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::offload {

struct GradientStatistics {
  double sum_of_squares = 0;  // Over the finite elements.
  int64_t non_finite = 0;     // Infinities and NaNs.

  bool IsFinite() const { return non_finite == 0; }
  double Norm() const { return std::sqrt(sum_of_squares); }

  // The rounding of the sum depends only on the order of the calls.
  void Add(const GradientStatistics& other) {
    sum_of_squares += other.sum_of_squares;
    non_finite += other.non_finite;
  }
};

// Measures f64, f32, bf16 or f16 elements; memory-bound. Sums in f64, in an
// order that depends only on the number of elements, so the result is
// bit-identical for every instruction set, number of threads and device.
// InvalidArgument as for CheckGradient.
absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient, ThreadPool& pool);
absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient);

// InvalidArgument for types that MeasureGradient does not support, and for data
// that is not aligned to its elements. Reads no element.
absl::Status CheckGradient(const ConstTypedSpan& gradient);

// The factor that reduces a norm to `max_norm`: min(1, max_norm / (norm +
// 1e-6)), like torch.nn.utils.clip_grad_norm_. 1 (no clipping) if `max_norm` is
// 0 or less.
double ClipFactor(double norm, double max_norm);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_GRADIENT_STATISTICS_H_
