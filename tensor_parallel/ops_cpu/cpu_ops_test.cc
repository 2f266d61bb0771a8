#include "tensor_parallel/ops_cpu/cpu_ops.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/matrices.h"

namespace tessera::tensor_parallel {
namespace {

using cpu::TestTensor;
using ::testing::Each;
using ::testing::ElementsAre;

TEST(CpuOps, LimitsTheThreadsOfProducts) {
  const CpuOps two({.threads = 2});
  EXPECT_EQ(cpu::BlasThreads(), 2);
  const CpuOps shared({.ranks_in_process = 1 << 20});
  EXPECT_EQ(cpu::BlasThreads(), 1);
  const CpuOps all;
  EXPECT_GE(cpu::BlasThreads(), 1);
}

// A layer with every kind of operation.
class Layer {
 public:
  explicit Layer(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (TestTensor* x : {&table_, &norm_, &weight_, &gate_}) {
      x->Randomise(random, 0.5);
    }
    inverse_.Set(std::vector<double>(5, 1));
  }

  // The loss of the tokens.
  absl::StatusOr<double> Run(Ops& ops) {
    const std::vector<int64_t> ids = {1, 3, 0, 5, 1}, targets = {2, 2, 9, 0, 4};
    const std::vector<int64_t> positions = {0, 1, 2, 3, 4};
    TESSERA_RETURN_IF_ERROR(
        ops.GatherRows(table_.view(), {0, 6}, ids, x_.view()));
    TESSERA_RETURN_IF_ERROR(
        ops.RmsNorm(1e-6, x_.view(), norm_.view(), x_.view(), inverse_.view()));
    TESSERA_RETURN_IF_ERROR(
        ops.Gemm({.transpose_b = true}, x_.view(), weight_.view(), q_.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView heads,
                             q_.view().Reshape({{5, 2, 4}}));
    TESSERA_RETURN_IF_ERROR(ops.Rotate(100, false, positions, heads));
    TESSERA_RETURN_IF_ERROR(ops.Fill(0, output_.view()));
    TESSERA_RETURN_IF_ERROR(ops.Fill(-INFINITY, log_sum_exp_.view()));
    TESSERA_RETURN_IF_ERROR(
        ops.Attend({heads, heads, heads, positions, positions},
                   {output_.view(), log_sum_exp_.view()}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView y,
                             output_.view().Reshape({{5, 8}}));
    TESSERA_RETURN_IF_ERROR(ops.Add(x_.view(), y));
    TESSERA_RETURN_IF_ERROR(ops.SwiGlu(y, x_.view(), y));
    TESSERA_RETURN_IF_ERROR(
        ops.Gemm({.transpose_b = true}, y, gate_.view(), logits_.view()));
    TESSERA_RETURN_IF_ERROR(ops.RowMax(logits_.view(), largest_.view()));
    TESSERA_RETURN_IF_ERROR(
        ops.SumExp(logits_.view(), largest_.view(), sum_.view()));
    TESSERA_RETURN_IF_ERROR(
        ops.Pick(logits_.view(), {0, 10}, targets, picked_.view()));
    double loss = 0;
    for (int64_t i = 0; i < 5; ++i) {
      loss += largest_.at(i) + std::log(sum_.at(i)) - picked_.at(i);
    }
    return loss;
  }

  TestTensor& weight() { return weight_; }

 private:
  TestTensor table_{DType::kF64, {6, 8}}, norm_{DType::kF64, {8}};
  TestTensor weight_{DType::kF64, {8, 8}}, gate_{DType::kF64, {10, 8}};
  TestTensor x_{DType::kF64, {5, 8}}, q_{DType::kF64, {5, 8}};
  TestTensor inverse_{DType::kF64, {5}};
  TestTensor output_{DType::kF64, {5, 2, 4}}, log_sum_exp_{DType::kF64, {5, 2}};
  TestTensor logits_{DType::kF64, {5, 10}}, largest_{DType::kF64, {5}};
  TestTensor sum_{DType::kF64, {5}}, picked_{DType::kF64, {5}};
};

TEST(CpuOps, RunsALayer) {
  CpuOps ops({.threads = 1});
  Layer layer(1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, layer.Run(ops));
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_GT(loss, 0);
  layer.weight().set(0, layer.weight().at(0) + 0.5);
  TESSERA_ASSERT_OK_AND_ASSIGN(const double other, layer.Run(ops));
  EXPECT_NE(other, loss);
}

TEST(CpuOps, RanksAsThreadsOfOneProcessGiveWhatOneAloneGives) {
  CpuOps alone({.threads = 1});
  Layer layer(2);
  TESSERA_ASSERT_OK_AND_ASSIGN(const double expected, layer.Run(alone));
  std::vector<double> losses(4, 0);
  std::vector<std::thread> ranks;
  for (double& loss : losses) {
    ranks.emplace_back([&loss] {
      CpuOps ops({.threads = 1});
      Layer layer(2);
      for (int i = 0; i < 50; ++i) loss = layer.Run(ops).value_or(-1);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(losses, Each(expected));
}

TEST(CpuOps, ForwardsGradientsToTheirOperations) {
  CpuOps cpu({.threads = 1});
  Ops& ops = cpu;
  TestTensor x(DType::kF64, {2, 2}), w(DType::kF64, {2}), s(DType::kF64, {2});
  x.Set({1, 2, 3, 4});
  TESSERA_ASSERT_OK(ops.SumRows(x.view(), w.view()));
  EXPECT_THAT(w.values(), ElementsAre(4, 6));
  TESSERA_ASSERT_OK(ops.AddBias(w.view(), x.view()));
  EXPECT_THAT(x.values(), ElementsAre(5, 8, 7, 10));
  TESSERA_ASSERT_OK(ops.Scale(2, w.view()));
  EXPECT_THAT(w.values(), ElementsAre(8, 12));
  TESSERA_ASSERT_OK(ops.Cast(w.view(), s.view()));
  EXPECT_THAT(s.values(), ElementsAre(8, 12));
  const std::vector<int64_t> ids = {1, 1};
  TestTensor table(DType::kF64, {2, 2});
  TESSERA_ASSERT_OK(ops.AddRows(x.view(), {0, 2}, ids, table.view()));
  EXPECT_THAT(table.values(), ElementsAre(0, 0, 12, 18));
  TestTensor y(DType::kF64, {2, 2}), g(DType::kF64, {2, 2});
  TestTensor ones(DType::kF64, {2});
  ones.Set({1, 1});
  x.Set({1, 1, 2, 2});
  TESSERA_ASSERT_OK(ops.RmsNorm(0, x.view(), ones.view(), y.view(), s.view()));
  EXPECT_THAT(y.values(), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(s.values(), ElementsAre(1, 0.5));
  w.Set({0, 0});
  TESSERA_ASSERT_OK(
      ops.RmsNormWeightGradient(y.view(), x.view(), s.view(), w.view()));
  EXPECT_THAT(w.values(), ElementsAre(2, 2));
  TESSERA_ASSERT_OK(ops.RmsNormInputGradient(y.view(), x.view(), ones.view(),
                                             s.view(), g.view()));
  EXPECT_THAT(g.values(), ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace tessera::tensor_parallel
