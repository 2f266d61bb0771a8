#include "offload/optimizer/gradient_statistics.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parallel_for_pool.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::offload {
namespace {

// Elements of a part: its sum is one term of the whole.
constexpr int64_t kPart = int64_t{1} << 16;

absl::Status Check(const ConstTypedSpan& gradient) {
  const DType dtype = gradient.dtype();
  if (dtype != DType::kF64 && dtype != DType::kF32 && dtype != DType::kBF16 &&
      dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("MeasureGradient: elements are ", DTypeName(dtype),
                     "; give f64, f32, bf16 or f16"));
  }
  if (gradient.size() < 0 ||
      (gradient.size() > 0 && gradient.data() == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MeasureGradient: ", gradient.size(), " elements without data"));
  }
  const auto address = reinterpret_cast<uintptr_t>(gradient.data());
  const auto alignment = static_cast<uintptr_t>(SizeInBytes(dtype));
  if (gradient.empty() || address % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "MeasureGradient: data starts at an address that is not a multiple of ",
      alignment, ", the size of its elements"));
}

}  // namespace

absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient, ParallelForPool& pool) {
  TESSERA_RETURN_IF_ERROR(Check(gradient));
  const int64_t parts = (gradient.size() + kPart - 1) / kPart;
  std::vector<RunStatistics> terms(static_cast<size_t>(parts));
  pool.Run(parts, [&](int64_t i) {
    const int64_t at = i * kPart;
    terms[static_cast<size_t>(i)] =
        StatisticsOf(gradient.dtype(), gradient.At(at),
                     std::min(kPart, gradient.size() - at));
  });
  GradientStatistics total;
  for (const RunStatistics& term : terms) {
    total.Add({term.sum_of_squares, term.non_finite});
  }
  return total;
}

absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient) {
  ParallelForPool caller(1);
  return MeasureGradient(gradient, caller);
}

double ClipFactor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera::offload
