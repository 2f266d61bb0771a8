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
#include "tensor_parallel/ops/ops_conformance.h"
#include "tensor_parallel/ops/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

struct Problem {
  Problem(DType dtype, const Dims& shape, std::mt19937_64& random)
      : gate(dtype, shape, 2),
        up(dtype, shape, 3),
        y(dtype, shape, 1),
        gradient(dtype, shape, 5),
        gate_gradient(dtype, shape, 4),
        up_gradient(dtype, shape, 1) {
    gate.Randomise(random, 3);
    up.Randomise(random);
    gradient.Randomise(random);
  }
  absl::Status Forward(Ops& ops) {
    return ops.SwiGlu(gate.view(), up.view(), y.view());
  }
  absl::Status Backward(Ops& ops) {
    return ops.SwiGluGradient(gradient.view(), gate.view(), up.view(),
                              gate_gradient.view(), up_gradient.view());
  }

  TestTensor gate, up, y, gradient, gate_gradient, up_gradient;
};

const std::vector<Dims> kShapes = {{1, 1},   {3, 7}, {5, 16},
                                   {2, 129}, {0, 5}, {5, 0}};

TEST_P(OpsConformanceTest, SwiGluIsItsFormulaBothWays) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kShapes) {
      Problem p(dtype, shape, random);
      TESSERA_ASSERT_OK(p.Forward(ops()));
      TESSERA_ASSERT_OK(p.Backward(ops()));
      std::vector<double> y, gate, up;
      for (int64_t i = 0; i < p.gate.size(); ++i) {
        const double g = p.gate.at(i), dy = p.gradient.at(i);
        const double s = 1 / (1 + std::exp(-g));
        y.push_back(g * s * p.up.at(i));
        gate.push_back(dy * p.up.at(i) * (s + g * s * (1 - s)));
        up.push_back(dy * g * s);
      }
      ExpectClose(p.y, y);
      ExpectClose(p.gate_gradient, gate);
      ExpectClose(p.up_gradient, up);
      EXPECT_TRUE(p.y.GapsAreIntact() && p.gate_gradient.GapsAreIntact());
    }
  }
}

TEST_P(OpsConformanceTest, SwiGluGradientsAreFiniteDifferences) {
  std::mt19937_64 random(2);
  Problem p(DType::kF64, {3, 9}, random);
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

TEST_P(OpsConformanceTest, SwiGluOfFarGatesIsZeroOrTheProduct) {
  std::mt19937_64 random(3);
  Problem p(DType::kF32, {1, 3}, random);
  p.gate.Set({-500, 500, 0});
  p.up.Set({2, 2, 2});
  p.gradient.Set({1, 1, 1});
  TESSERA_ASSERT_OK(p.Forward(ops()));
  TESSERA_ASSERT_OK(p.Backward(ops()));
  EXPECT_EQ(p.y.values(), (std::vector<double>{0, 1000, 0}));
  EXPECT_EQ(p.gate_gradient.values(), (std::vector<double>{0, 2, 1}));
}

TEST_P(OpsConformanceTest, SwiGluGradientMayWriteOverItsInputs) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    Problem p(dtype, {4, 77}, random);
    TESSERA_ASSERT_OK(p.Backward(ops()));
    TESSERA_ASSERT_OK(ops().SwiGluGradient(p.gradient.view(), p.gate.view(),
                                           p.up.view(), p.gate.view(),
                                           p.up.view()));
    EXPECT_EQ(p.gate.values(), p.gate_gradient.values());
    EXPECT_EQ(p.up.values(), p.up_gradient.values());
  }
}

TEST_P(OpsConformanceTest, SwiGluRefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(6);
  Problem p(DType::kF32, {2, 3}, random);
  const TestTensor other(DType::kF32, {3, 2});
  const auto before = p.y.bytes();
  EXPECT_THAT(ops().SwiGlu(p.gate.view(), other.view(), p.y.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("SwiGlu: \"up\" has shape [3,2]; it should "
                                 "be [2,3].")));
  EXPECT_THAT(
      ops().SwiGluGradient(other.view(), p.gate.view(), p.up.view(), p.y.view(),
                           p.y.view()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("SwiGluGradient: \"gradient\" has shape [3,2]")));
  EXPECT_EQ(p.y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
