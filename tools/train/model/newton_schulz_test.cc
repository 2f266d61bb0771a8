// Tests Orthogonalise against loops in float64, its singular values, and
// torch.optim.Muon (testdata/make_torch_muon.py).
#include "tools/train/model/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::train {
namespace {

using ::testing::Each;

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values = {};

  double& at(int64_t r, int64_t c) {
    return values[static_cast<size_t>(r * columns + c)];
  }
  double at(int64_t r, int64_t c) const {
    return values[static_cast<size_t>(r * columns + c)];
  }
};

Matrix Zeros(int64_t rows, int64_t columns) {
  return {rows, columns,
          std::vector<double>(static_cast<size_t>(rows * columns))};
}

Matrix Transposed(const Matrix& x) {
  Matrix y = Zeros(x.columns, x.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.columns; ++c) y.at(c, r) = x.at(r, c);
  }
  return y;
}

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix y = Zeros(a.rows, b.columns);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < b.columns; ++c) {
      for (int64_t k = 0; k < a.columns; ++k) {
        y.at(r, c) += a.at(r, k) * b.at(k, c);
      }
    }
  }
  return y;
}

// X <- a X + b X X^T X + c X X^T X X^T X, straight from the paper.
Matrix Reference(Matrix x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::sqrt(squares);
  for (int i = 0; i < 5; ++i) {
    const Matrix third = Product(Product(x, Transposed(x)), x);
    const Matrix fifth = Product(Product(x, Transposed(x)), third);
    for (size_t e = 0; e < x.values.size(); ++e) {
      x.values[e] = 3.4445 * x.values[e] - 4.775 * third.values[e] +
                    2.0315 * fifth.values[e];
    }
  }
  return x;
}

// Computes singular values by Jacobi's method on x x^T.
std::vector<double> SingularValues(const Matrix& x) {
  Matrix a = Product(x, Transposed(x));
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (int64_t p = 0; p < a.rows; ++p) {
      for (int64_t q = p + 1; q < a.rows; ++q) {
        if (std::abs(a.at(p, q)) < 1e-300) continue;
        const double angle =
            0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        for (int64_t k = 0; k < a.rows; ++k) {
          const double ap = a.at(p, k), aq = a.at(q, k);
          a.at(p, k) = c * ap - s * aq;
          a.at(q, k) = s * ap + c * aq;
        }
        for (int64_t k = 0; k < a.rows; ++k) {
          const double ap = a.at(k, p), aq = a.at(k, q);
          a.at(k, p) = c * ap - s * aq;
          a.at(k, q) = s * ap + c * aq;
        }
      }
    }
  }
  std::vector<double> values;
  for (int64_t i = 0; i < a.rows; ++i) values.push_back(std::sqrt(a.at(i, i)));
  return values;
}

Tensor Uploaded(const Matrix& x, DType dtype) {
  Tensor tensor = *Tensor::Create(dtype, {{x.rows, x.columns}});
  for (size_t i = 0; i < x.values.size(); ++i) {
    if (dtype == DType::kF64) {
      reinterpret_cast<double*>(tensor.view().data())[i] = x.values[i];
    } else {
      reinterpret_cast<float*>(tensor.view().data())[i] =
          static_cast<float>(x.values[i]);
    }
  }
  return tensor;
}

Matrix Orthogonalised(const Matrix& x, DType dtype) {
  tensor_parallel::CpuOps ops({.threads = 1});
  Tensor tensor = Uploaded(x, dtype);
  // The previous contents must not affect the result.
  const double nan = std::nan("");
  Tensor other = *Tensor::Create(dtype, {{x.rows, x.columns}});
  Tensor scratch =
      *Tensor::Create(dtype, {{NewtonSchulzElements(x.rows, x.columns)}});
  EXPECT_THAT(ops.Run(tensor_parallel::op::Fill{nan, other.view()}), IsOk());
  EXPECT_THAT(ops.Run(tensor_parallel::op::Fill{nan, scratch.view()}), IsOk());
  const auto update =
      Orthogonalise(ops, tensor.view(), other.view(), scratch.view());
  EXPECT_THAT(update.status(), IsOk());
  Matrix result = Zeros(x.rows, x.columns);
  for (size_t i = 0; i < result.values.size(); ++i) {
    result.values[i] = dtype == DType::kF64
                           ? reinterpret_cast<const double*>(update->data())[i]
                           : static_cast<double>(reinterpret_cast<const float*>(
                                 update->data())[i]);
  }
  return result;
}

// Normal numbers with a larger diagonal, so that no singular value is below a
// hundredth of the norm.
Matrix Random(int64_t rows, int64_t columns, double scale) {
  std::mt19937_64 random(static_cast<uint64_t>(rows * 1000 + columns));
  std::normal_distribution<double> normal;
  Matrix x = Zeros(rows, columns);
  for (double& value : x.values) value = scale * normal(random);
  const int64_t smaller = std::min(rows, columns);
  for (int64_t i = 0; i < smaller; ++i) {
    x.at(i, i) += 3 * scale * std::sqrt(static_cast<double>(smaller));
  }
  return x;
}

double LargestDifference(const Matrix& a, const Matrix& b) {
  double largest = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double difference = std::abs(a.values[i] - b.values[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {
    {1, 1},  {1, 9},   {9, 1},   {5, 5},  {7, 13},
    {13, 7}, {33, 31}, {40, 20}, {24, 65}};

TEST(NewtonSchulzTest, IsTheIterationInFloat64) {
  for (const auto& [rows, columns] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    // As small as gradients, and large.
    for (const double scale : {1e-7, 1.0, 1e4}) {
      const Matrix x = Random(rows, columns, scale);
      const Matrix expected = Reference(x);
      EXPECT_LT(LargestDifference(Orthogonalised(x, DType::kF64), expected),
                1e-12);
      EXPECT_LT(LargestDifference(Orthogonalised(x, DType::kF32), expected),
                1e-5);
    }
  }
}

TEST(NewtonSchulzTest, SingularValuesAreNearOne) {
  for (const auto& [rows, columns] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    Matrix update = Orthogonalised(Random(rows, columns, 1), DType::kF32);
    if (update.rows > update.columns) update = Transposed(update);
    for (const double value : SingularValues(update)) {
      EXPECT_GT(value, 0.68);
      EXPECT_LT(value, 1.135);
    }
  }
}

TEST(NewtonSchulzTest, ZerosStayZeros) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    EXPECT_THAT(Orthogonalised(Zeros(5, 8), dtype).values, Each(0));
    // A row of zeros too.
    Matrix x = Random(6, 4, 1);
    for (int64_t c = 0; c < 4; ++c) x.at(2, c) = 0;
    const Matrix update = Orthogonalised(x, dtype);
    EXPECT_LT(LargestDifference(update, Reference(x)), 1e-5);
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(update.at(2, c), 0);
  }
}

TEST(NewtonSchulzTest, PreservesSign) {
  Matrix x = Random(7, 5, 1);
  const Matrix update = Orthogonalised(x, DType::kF32);
  for (double& value : x.values) value = -value;
  Matrix negative = Orthogonalised(x, DType::kF32);
  for (double& value : negative.values) value = -value;
  EXPECT_EQ(negative.values, update.values);
}

// The formula of make_torch_muon.py.
double Element(int64_t index, int64_t step) {
  const auto i = static_cast<double>(index);
  return std::sin(1.7 * i + 0.3 * static_cast<double>(step)) +
         0.1 * std::cos(i * i);
}

TEST(NewtonSchulzTest, StepsMatchTorch) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      ReadFile("tools/train/model/testdata/torch_muon.json", 1 << 20));
  TESSERA_ASSERT_OK_AND_ASSIGN(const nlohmann::json json, ParseJson(text, {}));
  constexpr double kMomentum = 0.95;
  for (const nlohmann::json& of_case : json.at("cases")) {
    const int64_t rows = of_case.at("rows"), columns = of_case.at("columns");
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Matrix expected = {rows, columns, of_case.at("updates")};
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      Matrix momentum = Zeros(rows, columns), sum = momentum;
      for (int64_t step = 0; step < json.at("steps"); ++step) {
        Matrix direction = momentum;
        for (int64_t e = 0; e < rows * columns; ++e) {
          const auto i = static_cast<size_t>(e);
          const double gradient = Element(e, step);
          momentum.values[i] = kMomentum * momentum.values[i] + gradient;
          direction.values[i] = gradient + kMomentum * momentum.values[i];
        }
        const Matrix update = Orthogonalised(direction, dtype);
        for (size_t i = 0; i < sum.values.size(); ++i) {
          sum.values[i] +=
              0.2 * std::sqrt(static_cast<double>(std::max(rows, columns))) *
              update.values[i];
        }
      }
      EXPECT_LT(LargestDifference(sum, expected),
                dtype == DType::kF64 ? 1e-10 : 1e-5);
    }
  }
}

}  // namespace
}  // namespace tessera::train
