#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kTokens = 5, kWidth = 8, kVocabulary = 10;

// The tensors of a layer.
struct Layer {
  explicit Layer(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (TestTensor* x : {&table, &norm, &weight, &head}) {
      x->Randomise(random, 0.5);
    }
    ids.Set({1, 3, 0, 5, 1});
    targets.Set({2, 2, 9, 0, 4});
    SetRotaryTable(RotaryFrequencies{.base = 100}.Of(4, kTokens),
                   std::vector<int64_t>{0, 1, 2, 3, 4}, turns.view());
    scales.Set({1, 1, 0.5, 0.5, 0});
  }
  std::vector<TestTensor*> all() {
    return {&table, &norm,   &weight, &head,    &ids,   &targets, &x,
            &q,     &output, &logits, &inverse, &turns, &largest, &log_sum_exp,
            &sum,   &picked, &losses, &scales,  &total};
  }

  TestTensor table{DType::kF64, {6, kWidth}}, norm{DType::kF64, {kWidth}};
  TestTensor weight{DType::kF64, {kWidth, kWidth}};
  TestTensor head{DType::kF64, {kVocabulary, kWidth}};
  TestTensor ids{DType::kI64, {kTokens}}, targets{DType::kI64, {kTokens}};
  TestTensor x{DType::kF64, {kTokens, kWidth}}, q{DType::kF64, {kTokens, 8}};
  TestTensor output{DType::kF64, {1, kTokens, 2, 4}};
  TestTensor logits{DType::kF64, {kTokens, kVocabulary}};
  TestTensor inverse{DType::kF64, {kTokens}};
  TestTensor turns{DType::kF64, {kTokens, 4}};
  TestTensor largest{DType::kF64, {kTokens}};
  TestTensor log_sum_exp{DType::kF64, {1, kTokens, 2}};
  TestTensor sum{DType::kF64, {kTokens}}, picked{DType::kF64, {kTokens}};
  TestTensor losses{DType::kF64, {kTokens}}, scales{DType::kF64, {kTokens}};
  TestTensor total{DType::kF64, {1}};
};

// The loss of a layer with every kind of operation; `v` are views of all() in
// the memory of the ops.
absl::Status RunLayer(Ops& ops, const std::vector<TensorView>& v) {
  const auto& [table, norm, weight, head, ids, targets] =
      std::tie(v[0], v[1], v[2], v[3], v[4], v[5]);
  const auto& [x, q, output, logits, inverse, turns] =
      std::tie(v[6], v[7], v[8], v[9], v[10], v[11]);
  const auto& [largest, log_sum_exp, sum, picked, losses, scales, total] =
      std::tie(v[12], v[13], v[14], v[15], v[16], v[17], v[18]);
  TESSERA_RETURN_IF_ERROR(ops.Run(op::GatherRows{table, {0, 6}, ids, x}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::RmsNorm{1e-6, x, norm, x, inverse}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Gemm{{.transpose_b = true}, x, weight, q}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView heads,
                           q.Reshape({{kTokens, 2, 4}}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Rotate{false, turns, heads}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, output}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Fill{-std::numeric_limits<double>::infinity(), log_sum_exp}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView batch,
                           q.Reshape({{1, kTokens, 2, 4}}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Attend{{batch, batch, batch}, {output, log_sum_exp}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView y,
                           output.Reshape({{kTokens, kWidth}}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Add{x, y}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Glu{GluKind::kSwiGlu, y, x, y}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Gemm{{.transpose_b = true}, y, head, logits}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::RowMax{logits, largest}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::SumExp{logits, largest, sum}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Pick{logits, {0, kVocabulary}, targets, picked}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::CrossEntropyLosses{largest, sum, picked, targets, losses}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Sum{1.0 / kTokens, losses, total}));
  return ops.Run(op::CrossEntropyGradient{
      largest,
      sum,
      {0, kVocabulary},
      targets,
      scales,
      {.label_smoothing = 0.1, .z_loss = 1e-3, .vocabulary = kVocabulary},
      logits});
}

TEST_P(OpsConformanceTest, ALayerIsThatOfItsOperationsOneByOne) {
  for (const uint64_t seed : {1, 2}) {
    Layer layer(seed), other(seed);
    std::vector<TensorView> views;
    for (const TestTensor* tensor : layer.all()) {
      views.push_back(tensor->view());
    }
    TESSERA_ASSERT_OK(RunLayer(ops(), views));
    EXPECT_TRUE(std::isfinite(layer.total.at(0)));
    EXPECT_GT(layer.total.at(0), 0);

    // Enqueues both without a wait in between.
    std::vector<DeviceCopy> copies;
    views.clear();
    for (const TestTensor* tensor : other.all()) {
      views.push_back(copies.emplace_back(queue(), *tensor).view());
    }
    TESSERA_ASSERT_OK(RunLayer(device_ops(), views));
    for (size_t i = 0; i < copies.size(); ++i) {
      copies[i].ReadTo(*other.all()[i]);
      // The products of cuBLASLt depend on the alignment of their operands,
      // which are the copies.
      if (arithmetic() == Arithmetic::kTensorCores) {
        ExpectClose(*other.all()[i], layer.all()[i]->values());
      } else {
        EXPECT_EQ(other.all()[i]->bytes(), layer.all()[i]->bytes()) << i;
      }
    }
  }
}

TEST_P(OpsConformanceTest, GradientsOfSmallNumbers) {
  using ::testing::ElementsAre;
  TestTensor x(DType::kF64, {2, 2}), w(DType::kF64, {2}), s(DType::kF64, {2});
  x.Set({1, 2, 3, 4});
  TESSERA_ASSERT_OK(ops().Run(op::SumRows{x.view(), w.view()}));
  EXPECT_THAT(w.values(), ElementsAre(4, 6));
  TESSERA_ASSERT_OK(ops().Run(op::AddBias{w.view(), x.view()}));
  EXPECT_THAT(x.values(), ElementsAre(5, 8, 7, 10));
  TESSERA_ASSERT_OK(ops().Run(op::Scale{2, w.view()}));
  EXPECT_THAT(w.values(), ElementsAre(8, 12));
  TESSERA_ASSERT_OK(ops().Run(op::Cast{w.view(), s.view()}));
  EXPECT_THAT(s.values(), ElementsAre(8, 12));
  const std::vector<int64_t> ids = {1, 1};
  TestTensor table(DType::kF64, {2, 2});
  TESSERA_ASSERT_OK(
      ops().Run(op::AddRows{x.view(), {0, 2}, ListOf(ids), table.view()}));
  EXPECT_THAT(table.values(), ElementsAre(0, 0, 12, 18));
  TestTensor y(DType::kF64, {2, 2}), g(DType::kF64, {2, 2});
  TestTensor ones(DType::kF64, {2});
  ones.Set({1, 1});
  x.Set({1, 1, 2, 2});
  TESSERA_ASSERT_OK(
      ops().Run(op::RmsNorm{0, x.view(), ones.view(), y.view(), s.view()}));
  EXPECT_THAT(y.values(), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(s.values(), ElementsAre(1, 0.5));
  w.Set({0, 0});
  TESSERA_ASSERT_OK(ops().Run(
      op::RmsNormWeightGradient{y.view(), x.view(), s.view(), w.view()}));
  EXPECT_THAT(w.values(), ElementsAre(2, 2));
  TESSERA_ASSERT_OK(ops().Run(op::RmsNormInputGradient{
      y.view(), x.view(), ones.view(), s.view(), g.view()}));
  EXPECT_THAT(g.values(), ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace tessera::tensor_parallel
