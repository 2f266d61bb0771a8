#include "tensor_parallel/ops_cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/small_float.h"
#include "base/os/thread_pool.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/fp8.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/ops_cpu/onednn_gemm.h"

namespace tessera::tensor_parallel::cpu {

namespace {

CBLAS_TRANSPOSE Transposition(bool transposed) {
  return transposed ? CblasTrans : CblasNoTrans;
}

// OpenBLAS requires a stride of at least a row even for a single row.
blasint Stride(int64_t stride, int64_t rows, int64_t columns) {
  const int64_t least = std::max<int64_t>(columns, 1);
  return static_cast<blasint>(rows > 1 ? std::max(stride, least) : least);
}

template <typename T>
blasint StrideOf(const BlasFactor<T>& x, int64_t rows, int64_t columns) {
  return x.transposed ? Stride(x.stride, columns, rows)
                      : Stride(x.stride, rows, columns);
}

template <typename T>
void ScaleMatrix(const BlasShape& shape, T beta, const BlasResult<T>& c) {
  for (int64_t i = 0; i < shape.m; ++i) {
    T* const row = c.data + i * c.stride;
    for (int64_t j = 0; j < shape.n; ++j) {
      row[j] = beta == 0 ? T{0} : row[j] * beta;
    }
  }
}

// Sizes of panels for bf16: f32 buffers of 4, 8 and 8 MiB. Each converted
// element is used in at least 2048 operations if the matrices are as large.
constexpr int64_t kPanelM = 1024;
constexpr int64_t kPanelN = 2048;
constexpr int64_t kPanelK = 1024;

template <typename T>
void GemmAs(const GemmOptions& options, const BlasShape& shape,
            const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c) {
  Multiply<T>(shape, static_cast<T>(options.alpha),
              {reinterpret_cast<const T*>(a.data()), a.strides()[0],
               options.transpose_a},
              {reinterpret_cast<const T*>(b.data()), b.strides()[0],
               options.transpose_b},
              static_cast<T>(options.beta),
              {reinterpret_cast<T*>(c.data()), c.strides()[0]});
}

void CastRows(DType from, DType to, int64_t rows, int64_t n, ConstRowsView x,
              RowsView y) {
  RunElementwise({.step = ElementwiseJob::Step::kCast,
                  .x_type = from,
                  .y_type = to,
                  .rows = {0, rows},
                  .n = n,
                  .x = x,
                  .y = y});
}

RowsView Rows(float* data, int64_t stride) {
  return RowsView(reinterpret_cast<std::byte*>(data), stride);
}
ConstRowsView Rows(const float* data, int64_t stride) {
  return ConstRowsView(reinterpret_cast<const std::byte*>(data), stride);
}

// A part of a matrix of bf16, f16 or fp8 in f32, as it is stored.
class Panel {
 public:
  Panel(const ConstTensorView& matrix, bool transposed, int64_t size)
      : matrix_(matrix),
        transposed_(transposed),
        values_(std::make_unique_for_overwrite<float[]>(size)) {}

  // Rows [i, i + rows) and columns [j, j + columns) of op(matrix).
  BlasFactor<float> Read(int64_t i, int64_t j, int64_t rows, int64_t columns) {
    if (transposed_) {
      std::swap(i, j);
      std::swap(rows, columns);
    }
    const int64_t stride = matrix_.strides()[0];
    const int64_t offset = i * stride + j;
    const std::byte* const from =
        matrix_.data() + offset * SizeInBytes(matrix_.dtype());
    const DType dtype = matrix_.dtype();
    if (dtype == DType::kBF16 || dtype == DType::kF16) {
      CastRows(dtype, DType::kF32, rows, columns, ConstRowsView(from, stride),
               Rows(values_.get(), columns));
    } else {
      DecodeFp8Rows(matrix_.dtype(), rows, columns, from, stride, values_.get(),
                    columns);
    }
    return {values_.get(), columns, transposed_};
  }

 private:
  const ConstTensorView& matrix_;
  bool transposed_;
  std::unique_ptr<float[]> values_;
};

// Products of matrices of bf16, f16 or fp8, one part of c at a time.
class PanelGemm {
 public:
  PanelGemm(const GemmOptions& options, const BlasShape& shape,
            const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c)
      : options_(options),
        shape_(shape),
        panel_{.m = std::min(shape.m, kPanelM),
               .n = std::min(shape.n, kPanelN),
               .k = std::min(shape.k, kPanelK)},
        a_(a, options.transpose_a, panel_.m * panel_.k),
        b_(b, options.transpose_b, panel_.k * panel_.n),
        c_(c) {
    if (c.dtype() != DType::kF32) {
      sums_ = std::make_unique_for_overwrite<float[]>(panel_.m * panel_.n);
    }
  }

  void Run() {
    for (int64_t j = 0; j < shape_.n; j += panel_.n) {
      for (int64_t i = 0; i < shape_.m; i += panel_.m) {
        Part(i, j, std::min(panel_.m, shape_.m - i),
             std::min(panel_.n, shape_.n - j));
      }
    }
  }

 private:
  void Part(int64_t i, int64_t j, int64_t rows, int64_t columns) {
    const int64_t offset = i * c_.strides()[0] + j;
    std::byte* const c = c_.data() + offset * SizeInBytes(c_.dtype());
    BlasResult<float> sums = {reinterpret_cast<float*>(c), c_.strides()[0]};
    if (sums_ != nullptr) {
      sums = {sums_.get(), columns};
      if (options_.beta != 0) {
        CastRows(c_.dtype(), DType::kF32, rows, columns,
                 ConstRowsView(c, c_.strides()[0]), Rows(sums_.get(), columns));
      }
    }
    AddUp(i, j, rows, columns, sums);
    if (sums_ != nullptr) {
      const float* const rounded = sums_.get();
      CastRows(DType::kF32, c_.dtype(), rows, columns, Rows(rounded, columns),
               RowsView(c, c_.strides()[0]));
    }
  }

  void AddUp(int64_t i, int64_t j, int64_t rows, int64_t columns,
             const BlasResult<float>& sums) {
    const auto alpha = static_cast<float>(options_.alpha);
    auto beta = static_cast<float>(options_.beta);
    int64_t k = 0;
    do {  // Once where there is nothing to add up: beta applies.
      const int64_t depth = std::min(panel_.k, shape_.k - k);
      Multiply<float>({rows, columns, depth}, alpha, a_.Read(i, k, rows, depth),
                      b_.Read(k, j, depth, columns), beta, sums);
      beta = 1;
      k += panel_.k;
    } while (k < shape_.k);
  }

  const GemmOptions& options_;
  BlasShape shape_;
  BlasShape panel_;
  Panel a_;
  Panel b_;
  TensorView c_;
  std::unique_ptr<float[]> sums_;
};

BlasShape ShapeOf(const GemmOptions& options, const ConstTensorView& a,
                  const TensorView& c) {
  return {.m = c.shape()[0],
          .n = c.shape()[1],
          .k = a.shape()[options.transpose_a ? 0 : 1]};
}

void MultiplyTile(const GemmOptions& options, const ConstTensorView& a,
                  const ConstTensorView& b, const TensorView& c) {
  const BlasShape shape = ShapeOf(options, a, c);
  if (a.dtype() == DType::kF64) {
    GemmAs<double>(options, shape, a, b, c);
  } else if (shape.k > 0 && OneDnnGemm(options, a, b, c)) {
    return;
  } else if (a.dtype() == DType::kF32) {
    GemmAs<float>(options, shape, a, b, c);
  } else {
    PanelGemm(options, shape, a, b, c).Run();
  }
}

// A matrix as it is stored.
template <typename Byte, typename T>
BasicTensorView<Byte> ViewOf(T* data, int64_t stride, int64_t rows,
                             int64_t columns) {
  const int64_t shape[] = {rows, columns};
  const int64_t strides[] = {rows > 1 ? stride : columns, 1};
  const int64_t elements = (rows - 1) * strides[0] + columns;
  return *BasicTensorView<Byte>::Create(
      {reinterpret_cast<Byte*>(data), elements * sizeof(T)},
      kDTypeOf<std::remove_const_t<T>>, *Layout::Strided(shape, strides));
}
template <typename T>
ConstTensorView ViewOf(const BlasFactor<T>& x, int64_t rows, int64_t columns) {
  if (x.transposed) std::swap(rows, columns);
  return ViewOf<const std::byte>(x.data, x.stride, rows, columns);
}

// The sizes of the tiles of c that threads compute. They depend on the shape
// alone, so that the bits do not depend on the number of threads.
struct TileSizes {
  int64_t m = 0;
  int64_t n = 0;
};

TileSizes TileSizesOf(const BlasShape& shape) {
  // The minimum work of a tile: 80 to 200 us. With smaller or more tiles the
  // libraries pack the factors so often that one thread loses 5 to 15 %.
  constexpr double kLeastFlops = 16e6;
  constexpr int64_t kUnit = 64;  // Tiles are multiples of it.
  constexpr int64_t kMostTiles = 16;
  const auto half = [](int64_t size) {
    return (size / 2 + kUnit - 1) / kUnit * kUnit;
  };
  TileSizes tile = {shape.m, shape.n};
  for (int64_t tiles = 1; tiles < kMostTiles; tiles *= 2) {
    const double flops = 2.0 * static_cast<double>(tile.m) *
                         static_cast<double>(tile.n) *
                         static_cast<double>(shape.k);
    int64_t& longer = tile.n >= tile.m ? tile.n : tile.m;
    if (flops < 2 * kLeastFlops || longer < 2 * kUnit) break;
    longer = half(longer);
  }
  return tile;
}

// A product and the grid of its tiles.
struct TiledProduct {
  explicit TiledProduct(const op::Gemm& gemm)
      : product(gemm),
        shape(ShapeOf(gemm.options, gemm.a, gemm.c)),
        size(TileSizesOf(shape)) {}

  int64_t down() const { return (shape.m + size.m - 1) / size.m; }
  int64_t tiles() const { return down() * ((shape.n + size.n - 1) / size.n); }
  // Tiles with the same columns are consecutive, because they share part of b.
  op::Gemm Tile(int64_t index) const {
    const auto& [options, a, b, c] = product;
    const int64_t i = index % down() * size.m, j = index / down() * size.n;
    const int64_t m = std::min(size.m, shape.m - i);
    const int64_t n = std::min(size.n, shape.n - j);
    return {options, *a.Narrow(options.transpose_a ? 1 : 0, i, m),
            *b.Narrow(options.transpose_b ? 0 : 1, j, n),
            *c.Narrow(0, i, m)->Narrow(1, j, n)};
  }

  const op::Gemm& product;
  BlasShape shape;
  TileSizes size;
  int64_t end = 0;  // The number of tiles of this and all earlier products.
};

// Calls multiply(tile) for the tiles of all products.
template <typename MultiplyPart>
void RunTiles(ThreadPool& pool, std::span<const op::Gemm> products,
              const MultiplyPart& multiply) {
  std::vector<TiledProduct> tiled;
  int64_t tiles = 0;
  for (const op::Gemm& product : products) {
    if (product.IsEmpty()) continue;
    tiled.push_back(TiledProduct(product));
    tiles += tiled.back().tiles();
    tiled.back().end = tiles;
  }
  if (tiles == 0) return;
  if (tiles == 1) return multiply(tiled[0].product);
  pool.Run(tiles, [&](int64_t index) {
    const TiledProduct& of =
        *std::ranges::upper_bound(tiled, index, {}, &TiledProduct::end);
    multiply(of.Tile(of.tiles() - (of.end - index)));
  });
}

}  // namespace

template <typename T>
void Multiply(const BlasShape& shape, StatisticOf<T> alpha,
              const BlasFactor<T>& a, const BlasFactor<T>& b,
              StatisticOf<T> beta, const BlasResult<StatisticOf<T>>& c) {
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) return ScaleMatrix(shape, beta, c);
  const auto run = [&](auto gemm) {
    gemm(CblasRowMajor, Transposition(a.transposed),
         Transposition(b.transposed), static_cast<blasint>(shape.m),
         static_cast<blasint>(shape.n), static_cast<blasint>(shape.k), alpha,
         a.data, StrideOf(a, shape.m, shape.k), b.data,
         StrideOf(b, shape.k, shape.n), beta, c.data,
         Stride(c.stride, shape.m, shape.n));
  };
  if constexpr (std::is_same_v<T, float>) {
    run(cblas_sgemm);
  } else if constexpr (std::is_same_v<T, double>) {
    run(cblas_dgemm);
  } else {
    const GemmOptions options = {.transpose_a = a.transposed,
                                 .transpose_b = b.transposed,
                                 .alpha = alpha,
                                 .beta = beta};
    MultiplyTile(options, ViewOf(a, shape.m, shape.k),
                 ViewOf(b, shape.k, shape.n),
                 ViewOf<std::byte>(c.data, c.stride, shape.m, shape.n));
  }
}

template void Multiply(const BlasShape&, float, const BlasFactor<float>&,
                       const BlasFactor<float>&, float,
                       const BlasResult<float>&);
template void Multiply(const BlasShape&, double, const BlasFactor<double>&,
                       const BlasFactor<double>&, double,
                       const BlasResult<double>&);
template void Multiply(const BlasShape&, float, const BlasFactor<BF16>&,
                       const BlasFactor<BF16>&, float,
                       const BlasResult<float>&);

const absl::Status& CheckBlas() {
  static const absl::Status& status = *new absl::Status([]() -> absl::Status {
    const auto is_correct = []<typename T>(T) {
      const T a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
      T c[] = {1, 2, 3, 4};
      Multiply<T>({2, 2, 2}, 2, {a, 2}, {b, 2}, 1, {c, 2});
      return std::ranges::equal(c, std::array<T, 4>{39, 46, 89, 104});
    };
    if (is_correct(float{}) && is_correct(double{})) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "OpenBLAS multiplies incorrectly with its kernels for ",
        openblas_get_corename(),
        ", which it selected for this processor; select others by its "
        "environment variable OPENBLAS_CORETYPE, such as NEOVERSEN1 on "
        "64-bit Arm or HASWELL on x86-64"));
  }());
  return status;
}

void UseOneBlasThread() {
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

void Gemms(ThreadPool& pool, std::span<const op::Gemm> products) {
  RunTiles(pool, products, [](const op::Gemm& tile) {
    MultiplyTile(tile.options, tile.a, tile.b, tile.c);
  });
}

void GemmFp8(ThreadPool& pool, const Fp8GemmOptions& options,
             const ConstTensorView& a, const ConstTensorView& a_inverse,
             const ConstTensorView& b, const ConstTensorView& b_inverse,
             const TensorView& c) {
  const float factor = *reinterpret_cast<const float*>(a_inverse.data()) *
                       *reinterpret_cast<const float*>(b_inverse.data());
  const op::Gemm product = {{.transpose_b = true,
                             .alpha = factor,
                             .beta = options.accumulate ? 1.0 : 0.0},
                            a,
                            b,
                            c};
  RunTiles(pool, std::span(&product, 1), [](const op::Gemm& tile) {
    PanelGemm(tile.options, ShapeOf(tile.options, tile.a, tile.c), tile.a,
              tile.b, tile.c)
        .Run();
  });
}

}  // namespace tessera::tensor_parallel::cpu
