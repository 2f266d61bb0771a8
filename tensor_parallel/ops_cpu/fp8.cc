#include "tensor_parallel/ops_cpu/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/fp8_values.h"

namespace tessera::tensor_parallel::cpu {
namespace {

// The edge of the transposed tiles: source and result fit in the first-level
// cache.
constexpr int64_t kTile = 64;

float& ValueOf(const TensorView& view) {
  return *reinterpret_cast<float*>(view.data());
}
float* ValuesOf(const TensorView& view) {
  return reinterpret_cast<float*>(view.data());
}

// Processes rows [i, i + rows) and columns [j, j + columns) of x. Returns the
// maximum of `magnitude` and their magnitudes.
template <typename X, typename F8>
uint32_t CastTile(const ConstTensorView& x, float scale, int64_t i, int64_t j,
                  int64_t rows, int64_t columns, uint32_t magnitude,
                  const TensorView& y, const TensorView& transposed) {
  F8 tile[kTile];
  for (int64_t row = i; row < i + rows; ++row) {
    const X* const from =
        reinterpret_cast<const X*>(x.data()) + row * x.strides()[0] + j;
    for (int64_t c = 0; c < columns; ++c) {
      const auto value = static_cast<float>(from[c]);
      magnitude = std::max(magnitude, MagnitudeBits(value));
      tile[c] = Fp8Of<F8>(value * scale);
    }
    if (y.element_count() > 0) {
      std::copy(tile, tile + columns,
                reinterpret_cast<F8*>(y.data()) + row * y.strides()[0] + j);
    }
    if (transposed.element_count() > 0) {
      F8* const to = reinterpret_cast<F8*>(transposed.data()) + row;
      const int64_t stride = transposed.strides()[0];
      for (int64_t c = 0; c < columns; ++c) to[(j + c) * stride] = tile[c];
    }
  }
  return magnitude;
}

template <typename X, typename F8>
void CastTiles(const ConstTensorView& x, float scale, float& amax,
               const TensorView& y, const TensorView& transposed) {
  const int64_t m = x.shape()[0], n = x.shape()[1];
  uint32_t magnitude = MagnitudeBits(amax);
  for (int64_t i = 0; i < m; i += kTile) {
    for (int64_t j = 0; j < n; j += kTile) {
      magnitude =
          CastTile<X, F8>(x, scale, i, j, std::min(kTile, m - i),
                          std::min(kTile, n - j), magnitude, y, transposed);
    }
  }
  amax = std::bit_cast<float>(magnitude);
}

template <typename F8>
std::array<float, 256> TableOf() {
  std::array<float, 256> table;
  for (int i = 0; i < 256; ++i) {
    table[i] = static_cast<float>(F8::FromBits(static_cast<uint8_t>(i)));
  }
  return table;
}

}  // namespace

void CastTranspose(const ConstTensorView& x, const ConstTensorView& scale,
                   const TensorView& amax, const TensorView& y,
                   const TensorView& transposed) {
  const float factor = *reinterpret_cast<const float*>(scale.data());
  const DType to = y.element_count() > 0 ? y.dtype() : transposed.dtype();
  const auto cast = [&]<typename X, typename F8>(X, F8) {
    CastTiles<X, F8>(x, factor, ValueOf(amax), y, transposed);
  };
  if (x.dtype() == DType::kBF16) {
    to == DType::kF8E5M2 ? cast(BF16(), F8E5M2()) : cast(BF16(), F8E4M3());
  } else {
    to == DType::kF8E5M2 ? cast(0.0f, F8E5M2()) : cast(0.0f, F8E4M3());
  }
}

void UpdateScales(int margin, const ConstTensorView& largest,
                  const TensorView& amax, const TensorView& history,
                  const TensorView& scale, const TensorView& inverse) {
  const int64_t n = largest.shape()[0], steps = history.shape()[0];
  const float room = std::ldexp(1.0f, margin);
  for (int64_t i = 0; i < n; ++i) {
    float entry = HistoryEntryOf(ValuesOf(amax)[i]);
    float top = entry;
    for (int64_t step = 0; step < steps; ++step) {
      std::swap(entry, ValuesOf(history)[step * n + i]);
      top = std::max(top, ValuesOf(history)[step * n + i]);
    }
    if (steps > 0) ValuesOf(amax)[i] = 0;
    if (top == 0) continue;
    const Fp8Scale next = Fp8ScaleFor(
        reinterpret_cast<const float*>(largest.data())[i], top, room);
    ValuesOf(scale)[i] = next.scale;
    ValuesOf(inverse)[i] = next.inverse;
  }
}

void DecodeFp8Rows(DType dtype, int64_t rows, int64_t n, const std::byte* from,
                   int64_t from_stride, float* to, int64_t to_stride) {
  static const std::array<float, 256> e4m3 = TableOf<F8E4M3>();
  static const std::array<float, 256> e5m2 = TableOf<F8E5M2>();
  const std::array<float, 256>& table = dtype == DType::kF8E4M3 ? e4m3 : e5m2;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      to[i * to_stride + j] =
          table[static_cast<uint8_t>(from[i * from_stride + j])];
    }
  }
}

}  // namespace tessera::tensor_parallel::cpu
