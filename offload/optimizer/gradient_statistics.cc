#include "offload/optimizer/gradient_statistics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::offload {
namespace {

// The number of elements that a thread processes at a time: whole terms.
constexpr int64_t kPart = int64_t{1} << 16;
static_assert(kPart % kElementsOfTerm == 0);

// The sum of all terms, in the order of kernels.h.
GradientStatistics SumOf(std::span<const RunStatistics> terms) {
  constexpr auto kSums = static_cast<size_t>(kPartialSums);
  std::array<GradientStatistics, kSums> sums = {};
  for (size_t i = 0; i < terms.size(); ++i) {
    sums[i % kSums].Add({terms[i].sum_of_squares, terms[i].non_finite});
  }
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i].Add(sums[i + half]);
  }
  return sums[0];
}

}  // namespace

absl::Status CheckGradient(const ConstTypedSpan& gradient) {
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

absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient, ThreadPool& pool) {
  TESSERA_RETURN_IF_ERROR(CheckGradient(gradient));
  const int64_t size = gradient.size();
  std::vector<RunStatistics> terms(
      static_cast<size_t>((size + kElementsOfTerm - 1) / kElementsOfTerm));
  pool.Run((size + kPart - 1) / kPart, [&](int64_t part) {
    const int64_t end = std::min(size, (part + 1) * kPart);
    for (int64_t at = part * kPart; at < end; at += kElementsOfTerm) {
      terms[static_cast<size_t>(at / kElementsOfTerm)] =
          StatisticsOf(gradient.dtype(), gradient.At(at),
                       std::min(kElementsOfTerm, end - at));
    }
  });
  return SumOf(terms);
}

absl::StatusOr<GradientStatistics> MeasureGradient(
    const ConstTypedSpan& gradient) {
  ThreadPool caller(1);
  return MeasureGradient(gradient, caller);
}

double ClipFactor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera::offload
