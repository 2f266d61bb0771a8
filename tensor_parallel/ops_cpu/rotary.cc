#include "tensor_parallel/ops_cpu/rowwise/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/rotary_kernels.h"

namespace tessera::tensor_parallel::cpu {

absl::Status RotaryTable::Rotate(double base, bool inverse,
                                 std::span<const int64_t> positions,
                                 const TensorView& x) {
  OperandChecker check("Rotate");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 3));
  const int64_t tokens = x.shape()[0], d = x.shape()[2];
  check.Writes("x", x, x.shape())
      .Counts("positions", positions.size(), tokens)
      .Requires(d % 2 == 0,
                absl::StrCat("\"x\" has heads of ", d,
                             " elements; their number should be even."))
      .Requires(base > 0 && std::isfinite(base),
                absl::StrCat("base is ", base,
                             "; it should be positive and finite."));
  TESSERA_RETURN_IF_ERROR(check.status());
  if (x.element_count() == 0) return absl::OkStatus();

  const bool is_wide = x.dtype() == DType::kF64;
  is_wide ? Prepare(f64_, base, d, positions)
          : Prepare(f32_, base, d, positions);
  for (int64_t i = 0; i < tokens; ++i) {
    RunRotary(
        {.dtype = x.dtype(),
         .inverse = inverse,
         .heads = x.shape()[1],
         .d = d,
         .table = is_wide ? static_cast<const void*>(&f64_[i * d])
                          : static_cast<const void*>(&f32_[i * d]),
         .x = RowsView(x.data() + i * x.strides()[0] * SizeInBytes(x.dtype()),
                       x.strides()[1])});
  }
  return absl::OkStatus();
}

template <typename S>
void RotaryTable::Prepare(std::vector<S>& table, double base, int64_t d,
                          std::span<const int64_t> positions) {
  if (base == base_ && d == d_ && table.size() == positions.size() * d &&
      std::equal(positions.begin(), positions.end(), positions_.begin(),
                 positions_.end())) {
    return;
  }
  const int64_t half = d / 2;
  std::vector<double> frequencies(half);
  for (int64_t i = 0; i < half; ++i) {
    frequencies[i] =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  }
  f32_.clear();
  f64_.clear();
  table.resize(positions.size() * d);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * frequencies[i];
      table[t * d + i] = static_cast<S>(std::cos(angle));
      table[t * d + half + i] = static_cast<S>(std::sin(angle));
    }
  }
  base_ = base;
  d_ = d;
  positions_.assign(positions.begin(), positions.end());
}

}  // namespace tessera::tensor_parallel::cpu
