#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

struct Problem {
  Problem(GluKind kind, DType dtype, const Dims& shape, std::mt19937_64& random)
      : kind(kind),
        gate(dtype, shape, 2),
        up(dtype, shape, 3),
        y(dtype, shape, 1),
        gradient(dtype, shape, 5),
        gate_gradient(dtype, shape, 4),
        up_gradient(dtype, shape, 1) {
    // A part is beyond the limits of kClampedGlu.
    const bool is_clamped = kind == GluKind::kClampedGlu;
    gate.Randomise(random, is_clamped ? 12 : 3);
    up.Randomise(random, is_clamped ? 12 : 1);
    gradient.Randomise(random);
  }
  absl::Status Forward(Ops& ops) {
    return ops.Run(op::Glu{kind, gate.view(), up.view(), y.view()});
  }
  absl::Status Backward(Ops& ops) {
    return ops.Run(op::GluGradient{kind, gradient.view(), gate.view(),
                                   up.view(), gate_gradient.view(),
                                   up_gradient.view()});
  }

  GluKind kind;
  TestTensor gate, up, y, gradient, gate_gradient, up_gradient;
};

struct Activation {
  double value = 0;
  double slope = 0;
};

// Uses the definition by tanh; the kernels use a sigmoid.
Activation Activate(GluKind kind, double g) {
  if (kind == GluKind::kSwiGlu) {
    const double s = 1 / (1 + std::exp(-g));
    return {g * s, s + g * s * (1 - s)};
  }
  if (kind == GluKind::kClampedGlu) {
    const double x = std::min(g, 7.0), s = 1 / (1 + std::exp(-1.702 * x));
    return {x * s, g > 7 ? 0 : s + 1.702 * x * s * (1 - s)};
  }
  const double root = std::sqrt(2 / std::acos(-1.0));
  const double t = std::tanh(root * (g + 0.044715 * g * g * g));
  return {0.5 * g * (1 + t), 0.5 * (1 + t) + 0.5 * g * (1 - t * t) * root *
                                                 (1 + 3 * 0.044715 * g * g)};
}

// The factor of the activation.
Activation Factor(GluKind kind, double up) {
  if (kind != GluKind::kClampedGlu) return {up, 1};
  return {std::clamp(up, -7.0, 7.0) + 1, std::abs(up) > 7 ? 0.0 : 1.0};
}

constexpr GluKind kKinds[] = {GluKind::kSwiGlu, GluKind::kGeGlu,
                              GluKind::kClampedGlu};

const std::vector<Dims> kShapes = {{1, 1},   {3, 7}, {5, 16},
                                   {2, 129}, {0, 5}, {5, 0}};

TEST_P(OpsConformanceTest, GluIsItsFormulaBothWays) {
  std::mt19937_64 random(1);
  for (const GluKind kind : kKinds) {
    for (const DType dtype : kComputedTypes) {
      for (const Dims& shape : kShapes) {
        Problem p(kind, dtype, shape, random);
        TESSERA_ASSERT_OK(p.Forward(ops()));
        TESSERA_ASSERT_OK(p.Backward(ops()));
        std::vector<double> y, gate, up;
        for (int64_t i = 0; i < p.gate.size(); ++i) {
          const double dy = p.gradient.at(i);
          const auto [value, slope] = Activate(kind, p.gate.at(i));
          const Activation factor = Factor(kind, p.up.at(i));
          y.push_back(value * factor.value);
          gate.push_back(dy * factor.value * slope);
          up.push_back(dy * value * factor.slope);
        }
        ExpectClose(p.y, y);
        ExpectClose(p.gate_gradient, gate);
        ExpectClose(p.up_gradient, up);
        EXPECT_TRUE(p.y.GapsAreIntact() && p.gate_gradient.GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, GluGradientsAreFiniteDifferences) {
  std::mt19937_64 random(2);
  for (const GluKind kind : kKinds) {
    Problem p(kind, DType::kF64, {3, 9}, random);
    const auto f = [&] {
      EXPECT_THAT(p.Forward(ops()), IsOk());
      return Dot(p.gradient, p.y);
    };
    TESSERA_ASSERT_OK(p.Backward(ops()));
    for (int64_t i = 0; i < p.gate.size(); ++i) {
      EXPECT_NEAR(p.gate_gradient.at(i), Slope(p.gate, i, f), 1e-8);
      EXPECT_NEAR(p.up_gradient.at(i), Slope(p.up, i, f), 1e-8);
    }
  }
}

TEST_P(OpsConformanceTest, GluOfFarGatesIsZeroOrTheProduct) {
  std::mt19937_64 random(3);
  const double far = std::ldexp(1.0, 100);
  for (const GluKind kind : {GluKind::kSwiGlu, GluKind::kGeGlu}) {
    Problem p(kind, DType::kF32, {1, 5}, random);
    p.gate.Set({-500, 500, 0, -far, far});
    p.up.Set({2, 2, 2, 2, 2});
    p.gradient.Set({1, 1, 1, 1, 1});
    TESSERA_ASSERT_OK(p.Forward(ops()));
    TESSERA_ASSERT_OK(p.Backward(ops()));
    EXPECT_EQ(p.y.values(), (std::vector<double>{0, 1000, 0, 0, 2 * far}));
    EXPECT_EQ(p.gate_gradient.values(), (std::vector<double>{0, 2, 1, 0, 2}));
  }
}

TEST_P(OpsConformanceTest, ClampedGluIsConstantBeyondItsLimits) {
  std::mt19937_64 random(3);
  const double far = std::ldexp(1.0, 100);
  for (const DType dtype : kComputedTypes) {
    Problem p(GluKind::kClampedGlu, dtype, {1, 6}, random);
    p.gate.Set({-500, 7, 8, 500, 0, 2});
    p.up.Set({3, 7, 8, -500, -7, -8});
    p.gradient.Set({1, 1, 1, 1, 1, 1});
    TESSERA_ASSERT_OK(p.Forward(ops()));
    TESSERA_ASSERT_OK(p.Backward(ops()));
    EXPECT_EQ(p.y.at(0), 0);
    EXPECT_EQ(p.y.at(1), p.y.at(2));
    EXPECT_LT(p.y.at(3), -41);
    const std::vector<double> gate = p.gate_gradient.values(),
                              up = p.up_gradient.values();
    EXPECT_GT(gate[1], 0);
    EXPECT_EQ(gate[2], 0);
    EXPECT_EQ(gate[3], 0);
    EXPECT_EQ(gate[4], -3);
    EXPECT_GT(up[1], 6.9);
    EXPECT_EQ(up[2], 0);
    EXPECT_EQ(up[3], 0);
    EXPECT_EQ(up[5], 0);
  }
  Problem p(GluKind::kClampedGlu, DType::kF32, {1, 2}, random);
  p.gate.Set({-far, far});
  p.up.Set({far, 6});
  TESSERA_ASSERT_OK(p.Forward(ops()));
  EXPECT_EQ(p.y.at(0), 0);
  EXPECT_NEAR(p.y.at(1), 49, 1e-3);
}

TEST_P(OpsConformanceTest, GluGradientMayWriteOverItsInputs) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    for (const GluKind kind : kKinds) {
      Problem p(kind, dtype, {4, 77}, random);
      TESSERA_ASSERT_OK(p.Backward(ops()));
      TESSERA_ASSERT_OK(
          ops().Run(op::GluGradient{kind, p.gradient.view(), p.gate.view(),
                                    p.up.view(), p.gate.view(), p.up.view()}));
      EXPECT_EQ(p.gate.values(), p.gate_gradient.values());
      EXPECT_EQ(p.up.values(), p.up_gradient.values());
    }
  }
}

TEST_P(OpsConformanceTest, GluRefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(6);
  Problem p(GluKind::kGeGlu, DType::kF32, {2, 3}, random);
  const TestTensor other(DType::kF32, {3, 2});
  const auto before = p.y.bytes();
  EXPECT_THAT(
      ops().Run(op::Glu{p.kind, p.gate.view(), other.view(), p.y.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("Glu: \"up\" has shape [3,2]; it should "
                         "be [2,3].")));
  EXPECT_THAT(ops().Run(op::GluGradient{p.kind, other.view(), p.gate.view(),
                                        p.up.view(), p.y.view(), p.y.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("GluGradient: \"gradient\" has shape [3,2]")));
  EXPECT_EQ(p.y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
