#include "tensor_parallel/ops_cpu/onednn_gemm.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {
namespace {

// A matrix in rows that are `gap` elements longer.
template <typename T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, int64_t gap, std::mt19937_64& random)
      : rows(rows),
        columns(columns),
        stride(columns + gap),
        values(static_cast<size_t>(rows * stride)) {
    std::normal_distribution<float> normal;
    for (T& value : values) value = T(normal(random));
  }

  TensorView View() {
    return *TensorView::Create(
        std::as_writable_bytes(std::span(values)), DTypeOf<T>(),
        *Layout::Strided({{rows, columns}}, {{stride, 1}}));
  }
  double At(int64_t i, int64_t j) const {
    return static_cast<float>(values[static_cast<size_t>(i * stride + j)]);
  }

  template <typename U>
  static constexpr DType DTypeOf() {
    return sizeof(U) == 2 ? DType::kBF16 : DType::kF32;
  }

  int64_t rows, columns, stride;
  std::vector<T> values;
};

struct Shape {
  int64_t m, n, k;
};

class OneDnnGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!OneDnnMultipliesBF16()) {
      GTEST_SKIP() << "oneDNN is missing, or the processor has no products of "
                      "bf16 (AVX512-BF16, AMX)";
    }
  }
  // Compares each element with the sum in f64, of which it is allowed to be the
  // rounding of a sum in f32; and with that on another thread bit for bit.
  template <typename C>
  void Check(const Shape& shape, const GemmOptions& options) {
    SCOPED_TRACE(testing::Message()
                 << shape.m << "x" << shape.n << "x" << shape.k << " "
                 << options.transpose_a << options.transpose_b << " beta "
                 << options.beta << ", c of " << sizeof(C) << " bytes");
    std::mt19937_64 random(1);
    const auto [m, n, k] = shape;
    Matrix<BF16> a = options.transpose_a ? Matrix<BF16>(k, m, 3, random)
                                         : Matrix<BF16>(m, k, 3, random);
    Matrix<BF16> b = options.transpose_b ? Matrix<BF16>(n, k, 5, random)
                                         : Matrix<BF16>(k, n, 5, random);
    const Matrix<C> before(m, n, 2, random);
    Matrix<C> c = before, again = before;
    ASSERT_TRUE(OneDnnGemm(options, a.View(), b.View(), c.View()));
    std::thread([&] {
      EXPECT_TRUE(OneDnnGemm(options, a.View(), b.View(), again.View()));
    }).join();
    const double rounding = sizeof(C) == 2 ? 1.0 / 256 : 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = options.beta == 0 ? 0 : options.beta * before.At(i, j);
        double size = std::abs(sum);
        for (int64_t l = 0; l < k; ++l) {
          const double product =
              (options.transpose_a ? a.At(l, i) : a.At(i, l)) *
              (options.transpose_b ? b.At(j, l) : b.At(l, j));
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(c.At(i, j), sum, size * 1e-6 + std::abs(sum) * rounding)
            << i << " " << j;
        ASSERT_EQ(c.At(i, j), again.At(i, j)) << i << " " << j;
      }
      for (int64_t j = n; j < c.stride; ++j) {
        ASSERT_EQ(c.At(i, j), before.At(i, j)) << "a gap is written";
      }
    }
  }
};

TEST_F(OneDnnGemmTest, IsItsFormulaForEveryFormOnAnyThread) {
  for (const Shape& shape : {Shape{1, 1, 1},
                             {3, 5, 7},
                             {1, 100, 64},
                             {65, 1, 33},
                             {128, 129, 65},
                             {64, 256, 512},
                             {16, 16, 4096},
                             {2, 3, 1000}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const double beta : {0.0, 1.0, 0.5}) {
          const GemmOptions options = {.transpose_a = transpose_a,
                                       .transpose_b = transpose_b,
                                       .beta = beta};
          Check<BF16>(shape, options);
          Check<float>(shape, options);
        }
      }
    }
  }
}

TEST_F(OneDnnGemmTest, LeavesOtherProductsToOthers) {
  std::mt19937_64 random(1);
  Matrix<BF16> a(4, 4, 0, random), b(4, 4, 0, random);
  Matrix<float> c(4, 4, 0, random), d(4, 4, 0, random), e(4, 4, 0, random);
  const std::vector<float> before = c.values;
  EXPECT_FALSE(OneDnnGemm({.alpha = 2}, a.View(), b.View(), c.View()));
  EXPECT_FALSE(OneDnnGemm({}, d.View(), e.View(), c.View()));
  EXPECT_EQ(c.values, before);
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
