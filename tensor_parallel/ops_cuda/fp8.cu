// Kernels of operands in fp8: CastTranspose and UpdateScales.
//
// Both are memory-bound: a block casts a tile of 64 x 64 and transposes it in
// shared memory, with 16 bytes per access if rows are aligned. Both give the
// same bits as the CPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/fp8_values.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/row_block.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

constexpr int kTile = 64;
// The elements per thread, and the threads per row of the tile.
constexpr int kRun = 16;
constexpr int kRuns = kTile / kRun;
static_assert(kTile * kRuns == kThreads);
// Bytes from row to row in shared memory: whole words whose number is odd, so
// that the bytes of a column are spread over the banks.
constexpr int kPitch = kTile + 4;

struct LargerBits {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const {
    return a > b ? a : b;
  }
};

// An output of 8-bit elements; null if it is not wanted.
struct Fp8Matrix {
  uint8_t* data = nullptr;
  int64_t stride = 0;
};

// Elements of a run that lie within `size` elements from `at` on.
__device__ inline int CountWithin(int64_t at, int64_t size) {
  const int64_t left = size - at;
  return left >= kRun ? kRun : left > 0 ? static_cast<int>(left) : 0;
}

// Every thread casts 16 elements of a row, and then writes 16 elements of a
// column. `aligned_x`, `aligned_y` and `aligned_transposed`: rows begin at
// multiples of 16 bytes.
template <typename X, typename F8>
__global__ void __launch_bounds__(kThreads)
    CastTransposeKernel(const X* __restrict__ x, int64_t stride, int64_t m,
                        int64_t n, unsigned tiles_of_row, bool aligned_x,
                        bool aligned_y, bool aligned_transposed,
                        const float* __restrict__ scale,
                        uint32_t* __restrict__ amax, Fp8Matrix y,
                        Fp8Matrix transposed) {
  TESSERA_SHARED(uint32_t, tile, kTile * kPitch / 4);
  TESSERA_SHARED(uint32_t, slots, kWarps);
  const int64_t i0 = int64_t{blockIdx.x / tiles_of_row} * kTile;
  const int64_t j0 = int64_t{blockIdx.x % tiles_of_row} * kTile;
  const int line = static_cast<int>(threadIdx.x) / kRuns;
  const int first = static_cast<int>(threadIdx.x) % kRuns * kRun;

  const float factor = *scale;
  const int64_t row = i0 + line, column = j0 + first;
  const int count = row < m ? CountWithin(column, n) : 0;
  uint32_t magnitude = 0;
  PackOf<uint8_t> cast;
  constexpr int kPack = kPackOf<X>;
  for (int part = 0; part < kRun; part += kPack) {
    const X* const from = x + row * stride + column + part;
    const int left = count - part < kPack ? count - part : kPack;
    const PackOf<X> values =
        aligned_x ? LoadPack<true>(from, left) : LoadPack<false>(from, left);
    for (int j = 0; j < kPack; ++j) {
      const auto value = static_cast<float>(values.values[j]);
      if (part + j < count) {
        magnitude = LargerBits()(magnitude, MagnitudeBits(value));
      }
      cast.values[part + j] = Fp8Of<F8>(value * factor).bits();
    }
  }
  if (y.data != nullptr) {
    uint8_t* const to = y.data + row * y.stride + column;
    aligned_y ? StorePack<true>(cast, count, to)
              : StorePack<false>(cast, count, to);
  }
  for (int word = 0; word < kRun / 4; ++word) {
    const uint8_t* const bytes = cast.values + 4 * word;
    tile[(line * kPitch + first) / 4 + word] =
        bytes[0] | bytes[1] << 8 | bytes[2] << 16 |
        static_cast<uint32_t>(bytes[3]) << 24;
  }
  // Synchronises the block.
  magnitude = BlockReduce(magnitude, slots, LargerBits());
  // The bits of magnitudes, as integers, have the order of the magnitudes, so
  // that the result does not depend on the order of the blocks.
  if (threadIdx.x == 0) atomicMax(amax, magnitude);
  if (transposed.data == nullptr || j0 + line >= n) return;

  const auto* const bytes = reinterpret_cast<const uint8_t*>(tile);
  PackOf<uint8_t> turned;
  for (int j = 0; j < kRun; ++j) {
    turned.values[j] = bytes[(first + j) * kPitch + line];
  }
  const int rows = CountWithin(i0 + first, m);
  uint8_t* const to =
      transposed.data + (j0 + line) * transposed.stride + i0 + first;
  aligned_transposed ? StorePack<true>(turned, rows, to)
                     : StorePack<false>(turned, rows, to);
}

__global__ void __launch_bounds__(kThreads)
    UpdateScalesKernel(int64_t n, int64_t steps, float room,
                       const float* __restrict__ largest,
                       float* __restrict__ amax, float* __restrict__ history,
                       float* __restrict__ scale, float* __restrict__ inverse) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  float entry = HistoryEntryOf(amax[i]);
  float top = entry;
  for (int64_t step = 0; step < steps; ++step) {
    const float before = history[step * n + i];
    history[step * n + i] = entry;
    top = entry > top ? entry : top;
    entry = before;
  }
  if (steps > 0) amax[i] = 0;
  if (top == 0) return;
  const Fp8Scale next = Fp8ScaleFor(largest[i], top, room);
  scale[i] = next.scale;
  inverse[i] = next.inverse;
}

Fp8Matrix MatrixOf(const TensorView& view) {
  if (view.element_count() == 0) return {};
  return {DataOf<uint8_t>(view), view.strides()[0]};
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::CastTranspose& call) {
  const int64_t m = call.x.shape()[0], n = call.x.shape()[1];
  if (call.x.element_count() == 0) return absl::OkStatus();
  const int64_t across = (n + kTile - 1) / kTile;
  const int64_t tiles = (m + kTile - 1) / kTile * across;
  if (tiles > INT32_MAX) {
    return absl::UnimplementedError(absl::StrCat(
        "CastTranspose of ", DimsToString(call.x.shape()), " has ", tiles,
        " tiles of 64 call.x 64 elements; kernels take 2^31-1: cast parts."));
  }
  const DType to =
      call.y.element_count() > 0 ? call.y.dtype() : call.transposed.dtype();
  const auto launch = [&]<typename X, typename F8>(std::type_identity<X>,
                                                   std::type_identity<F8>) {
    Launch(CastTransposeKernel<X, F8>, static_cast<unsigned>(tiles), kThreads,
           /*dynamic_shared=*/0, cuda.stream, DataOf<X>(call.x),
           call.x.strides()[0], m, n, static_cast<unsigned>(across),
           RowsAreAligned(call.x), RowsAreAligned(call.y),
           RowsAreAligned(call.transposed), DataOf<float>(call.scale),
           DataOf<uint32_t>(call.amax), MatrixOf(call.y),
           MatrixOf(call.transposed));
  };
  const auto launch_from = [&]<typename X>(std::type_identity<X> from) {
    if (to == DType::kF8E5M2) {
      launch(from, std::type_identity<F8E5M2>());
    } else {
      launch(from, std::type_identity<F8E4M3>());
    }
  };
  if (call.x.dtype() == DType::kBF16) {
    launch_from(std::type_identity<BF16>());
  } else {
    launch_from(std::type_identity<float>());
  }
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::UpdateScales& call) {
  const int64_t n = call.largest.shape()[0];
  Launch(UpdateScalesKernel, BlocksOf(n), kThreads, /*dynamic_shared=*/0,
         cuda.stream, n, call.history.shape()[0], std::ldexp(1.0f, call.margin),
         DataOf<float>(call.largest), DataOf<float>(call.amax),
         DataOf<float>(call.history), DataOf<float>(call.scale),
         DataOf<float>(call.inverse));
  return absl::OkStatus();
}

void AddFp8Kernels(CudaKernelTable& table) {
  table.Add<op::CastTranspose, op::UpdateScales>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
