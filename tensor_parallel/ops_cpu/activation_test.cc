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
#include "tensor_parallel/ops_cpu/elementwise.h"
#include "tensor_parallel/ops_cpu/matrices.h"

namespace tessera::tensor_parallel::cpu {
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
  absl::Status Forward() { return SwiGlu(gate.view(), up.view(), y.view()); }
  absl::Status Backward() {
    return SwiGluGradient(gradient.view(), gate.view(), up.view(),
                          gate_gradient.view(), up_gradient.view());
  }

  TestTensor gate, up, y, gradient, gate_gradient, up_gradient;
};

const std::vector<Dims> kShapes = {{1, 1},   {3, 7}, {5, 16},
                                   {2, 129}, {0, 5}, {5, 0}};

TEST(SwiGlu, IsItsFormulaBothWays) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kShapes) {
      Problem p(dtype, shape, random);
      TESSERA_ASSERT_OK(p.Forward());
      TESSERA_ASSERT_OK(p.Backward());
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

TEST(SwiGlu, GradientsAreFiniteDifferences) {
  std::mt19937_64 random(2);
  Problem p(DType::kF64, {3, 9}, random);
  const auto f = [&] {
    EXPECT_THAT(p.Forward(), IsOk());
    return Dot(p.gradient, p.y);
  };
  TESSERA_ASSERT_OK(p.Backward());
  for (int64_t i = 0; i < p.gate.size(); ++i) {
    EXPECT_NEAR(p.gate_gradient.at(i), Slope(p.gate, i, f), 1e-8);
    EXPECT_NEAR(p.up_gradient.at(i), Slope(p.up, i, f), 1e-8);
  }
}

TEST(SwiGlu, OfFarGatesIsZeroOrTheProduct) {
  std::mt19937_64 random(3);
  Problem p(DType::kF32, {1, 3}, random);
  p.gate.Set({-500, 500, 0});
  p.up.Set({2, 2, 2});
  p.gradient.Set({1, 1, 1});
  TESSERA_ASSERT_OK(p.Forward());
  TESSERA_ASSERT_OK(p.Backward());
  EXPECT_EQ(p.y.values(), (std::vector<double>{0, 1000, 0}));
  EXPECT_EQ(p.gate_gradient.values(), (std::vector<double>{0, 2, 1}));
}

TEST(SwiGlu, HasTheSameBitsForEveryInstructionSetAndInPlace) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    Problem p(dtype, {4, 77}, random);
    std::vector<double> y, gate;
    ForEachInstructionSet([&] {
      TESSERA_ASSERT_OK(p.Forward());
      TESSERA_ASSERT_OK(p.Backward());
      if (y.empty()) y = p.y.values(), gate = p.gate_gradient.values();
      EXPECT_EQ(p.y.values(), y);
      EXPECT_EQ(p.gate_gradient.values(), gate);
    });
    TESSERA_ASSERT_OK(SwiGluGradient(p.gradient.view(), p.gate.view(),
                                     p.up.view(), p.gate.view(), p.up.view()));
    EXPECT_EQ(p.gate.values(), gate);
  }
}

TEST(SwiGlu, OfARowAloneHasTheBitsOfTheBatch) {
  std::mt19937_64 random(5);
  Problem p(DType::kF32, {5, 37}, random);
  TESSERA_ASSERT_OK(p.Forward());
  TestTensor row(DType::kF32, {1, 37});
  for (int64_t i = 0; i < 5; ++i) {
    TESSERA_ASSERT_OK(SwiGlu(*p.gate.view().Narrow(0, i, 1),
                             *p.up.view().Narrow(0, i, 1), row.view()));
    for (int64_t j = 0; j < 37; ++j) EXPECT_EQ(row.at(j), p.y.at(i * 37 + j));
  }
}

TEST(SwiGlu, RefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(6);
  Problem p(DType::kF32, {2, 3}, random);
  const TestTensor other(DType::kF32, {3, 2});
  const auto before = p.y.bytes();
  EXPECT_THAT(SwiGlu(p.gate.view(), other.view(), p.y.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("SwiGlu: \"up\" has shape [3,2]; it should "
                                 "be [2,3].")));
  EXPECT_THAT(
      SwiGluGradient(other.view(), p.gate.view(), p.up.view(), p.y.view(),
                     p.y.view()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("SwiGluGradient: \"gradient\" has shape [3,2]")));
  EXPECT_EQ(p.y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
