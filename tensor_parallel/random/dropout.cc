#include "tensor_parallel/random/dropout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

absl::Status Check(const DropoutMask& mask, const TensorView& x) {
  if (!(mask.probability >= 0 && mask.probability < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout with probability ",
                                                   mask.probability,
                                                   "; it must be in [0, 1)"));
  }
  if (x.rank() == 2 && x.shape()[0] == static_cast<int64_t>(mask.rows.size()) &&
      x.IsContiguous() && IsFloating(x.dtype()) && IsHostAccessible(x.kind())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dropout of ", DTypeName(x.dtype()), " ", DimsToString(x.shape()),
      x.IsContiguous() ? "" : ", strided,", " in ", MemoryKindName(x.kind()),
      " memory; give a contiguous floating-point tensor of ", mask.rows.size(),
      " rows in host memory"));
}

template <typename T>
void DropRow(const Philox& random, double probability, uint64_t first,
             std::span<T> row) {
  const double scale = 1 / (1 - probability);
  std::array<double, 256> uniform;
  for (size_t done = 0; done < row.size(); done += uniform.size()) {
    const size_t count = std::min(uniform.size(), row.size() - done);
    random.FillUniform(first + done, std::span(uniform.data(), count));
    for (size_t i = 0; i < count; ++i) {
      T& value = row[done + i];
      value = ConvertValue<T>(
          uniform[i] < probability ? 0.0 : scale * ConvertValue<double>(value));
    }
  }
}

}  // namespace

absl::Status ApplyDropout(const DropoutMask& mask, const TensorView& x) {
  TESSERA_RETURN_IF_ERROR(Check(mask, x));
  const Philox random(mask.key);
  const auto width = static_cast<size_t>(x.shape()[1]);
  return DispatchDType(
      x.dtype(), [&]<typename T>(std::type_identity<T>) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const std::span<T> values, x.AsSpan<T>());
        for (size_t i = 0; i < mask.rows.size(); ++i) {
          DropRow(random, mask.probability,
                  static_cast<uint64_t>(mask.rows[i]) * width,
                  values.subspan(i * width, width));
        }
        return absl::OkStatus();
      });
}

}  // namespace tessera::tensor_parallel
