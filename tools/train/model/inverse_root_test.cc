#include "tools/train/model/inverse_root.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::train {
namespace {

using Square = std::vector<double>;  // [n, n]

// G G^T of a matrix G [n, columns] whose columns have very different lengths.
Square Product(int64_t n, int64_t columns) {
  Square product(static_cast<size_t>(n * n));
  for (int64_t k = 0; k < columns; ++k) {
    const auto element = [&](int64_t i) {
      return std::sin(1.3 * static_cast<double>(i * columns + k) + 0.7) *
             std::pow(10.0, -static_cast<double>(k % 4));
    };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        product[static_cast<size_t>(i * n + j)] += element(i) * element(j);
      }
    }
  }
  return product;
}

Square Times(const Square& a, const Square& b, int64_t n) {
  Square product(a.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t j = 0; j < n; ++j) {
        product[static_cast<size_t>(i * n + j)] +=
            a[static_cast<size_t>(i * n + k)] *
            b[static_cast<size_t>(k * n + j)];
      }
    }
  }
  return product;
}

double NormOf(const Square& a) {
  double sum = 0;
  for (const double value : a) sum += value * value;
  return std::sqrt(sum);
}

template <typename T>
Square RootOf(const Square& a, int64_t n, double epsilon) {
  tensor_parallel::CpuOps ops{{.threads = 1}};
  std::vector<T> values(a.begin(), a.end()), root(a.size()),
      scratch(static_cast<size_t>(InverseRootElements(n)));
  const auto view = [](std::vector<T>& of, std::vector<int64_t> shape) {
    return *TensorView::Of(std::span(of), shape);
  };
  TESSERA_EXPECT_OK(InverseFourthRoot(ops, view(values, {n, n}), epsilon,
                                      view(root, {n, n}),
                                      view(scratch, {InverseRootElements(n)})));
  return Square(root.begin(), root.end());
}

// The largest difference of root^4 (a / |a| + epsilon I) to I.
double Residual(const Square& root, const Square& a, int64_t n,
                double epsilon) {
  const double norm = NormOf(a);
  Square shifted = a;
  for (double& value : shifted) value /= norm == 0 ? 1 : norm;
  for (int64_t i = 0; i < n; ++i) {
    shifted[static_cast<size_t>(i * (n + 1))] += epsilon;
  }
  const Square square = Times(root, root, n);
  const Square product = Times(Times(square, square, n), shifted, n);
  double largest = 0;
  for (int64_t i = 0; i < n * n; ++i) {
    const double wanted = i % (n + 1) == 0 ? 1 : 0;
    const double found = product[static_cast<size_t>(i)];
    largest = std::max(largest, std::abs(found - wanted));
  }
  return largest;
}

TEST(InverseRootTest, FourthPowerIsTheInverse) {
  for (const int64_t n : {1, 2, 7, 33, 90}) {
    // Singular, square and with more columns than rows.
    for (const int64_t columns : {(n + 1) / 2, n, 3 * n}) {
      for (const double epsilon : {1.0, 1e-3, 1e-6}) {
        SCOPED_TRACE(::testing::Message()
                     << n << ", " << columns << " columns, " << epsilon);
        const Square a = Product(n, columns);
        EXPECT_LT(Residual(RootOf<double>(a, n, epsilon), a, n, epsilon), 2e-8);
        // Rounding A changes the inverse by up to 2^-24 / epsilon.
        if (epsilon < 1e-3) continue;
        EXPECT_LT(Residual(RootOf<float>(a, n, epsilon), a, n, epsilon), 1e-3);
      }
    }
  }
}

TEST(InverseRootTest, FactorOfTheMatrixHasNoEffect) {
  Square a = Product(5, 9);
  const Square root = RootOf<double>(a, 5, 1e-6);
  for (double& value : a) value *= 1e-12;
  const Square same = RootOf<double>(a, 5, 1e-6);
  for (size_t i = 0; i < root.size(); ++i) {
    EXPECT_NEAR(same[i], root[i], 1e-8 * NormOf(root)) << i;
  }
}

TEST(InverseRootTest, ZerosHaveTheRootOfEpsilon) {
  for (const int64_t n : {1, 6}) {
    const Square zeros(static_cast<size_t>(n * n));
    EXPECT_LT(Residual(RootOf<double>(zeros, n, 1e-6), zeros, n, 1e-6), 1e-12);
    EXPECT_LT(Residual(RootOf<float>(zeros, n, 1e-6), zeros, n, 1e-6), 1e-4);
  }
}

TEST(InverseRootTest, IterationsFollowFromEpsilon) {
  EXPECT_EQ(InverseRootFactors(1e-6).size(), 13);
  EXPECT_EQ(InverseRootFactors(1).size(), 5);
  EXPECT_EQ(InverseRootFactors(1e-8).size(), 16);
  for (const double epsilon : {1e-8, 1e-3, 1.0}) {
    const std::vector<double> factors = InverseRootFactors(epsilon);
    EXPECT_TRUE(std::is_sorted(factors.rbegin(), factors.rend()));
    // Newton's, of which the convergence is quadratic.
    EXPECT_EQ(factors.back(), 1.25);
  }
}

}  // namespace
}  // namespace tessera::train
