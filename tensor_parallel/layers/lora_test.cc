// Adapters against loops over elements, on one rank; meshes of ranks are tested
// by whole training runs (tools/train/parity:lora_parity_test).
#include "tensor_parallel/layers/lora.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kTokens = 5, kIn = 6, kOut = 9, kRank = 2;
constexpr double kAlpha = 7;

// A matrix in row-major order.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& at(int64_t i, int64_t j) { return values[i * columns + j]; }
  double at(int64_t i, int64_t j) const { return values[i * columns + j]; }
};

Matrix MatrixOf(ConstTensorView view) {
  Matrix matrix = {view.shape()[0], view.shape()[1]};
  const double* const from = reinterpret_cast<const double*>(view.data());
  matrix.values.assign(from, from + view.element_count());
  return matrix;
}

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c = {a.rows, b.columns};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k)
        c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Matrix Transposed(const Matrix& a) {
  Matrix b = {a.columns, a.rows};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) b.at(j, i) = a.at(i, j);
  }
  return b;
}

// w + alpha / rank b a, where each projection has its rows of a.
Matrix Merged(Matrix w, const Matrix& a, const Matrix& b,
              const std::vector<int64_t>& projections) {
  for (int64_t i = 0; i < w.rows; ++i) {
    for (int64_t j = 0; j < w.columns; ++j) {
      for (int64_t k = 0; k < kRank; ++k) {
        w.at(i, j) += kAlpha / kRank * b.at(i, k) *
                      a.at(projections[static_cast<size_t>(i)] * kRank + k, j);
      }
    }
  }
  return w;
}

// The derivatives by a and b of a loss that has the derivative dw by the merged
// matrix: the chain rule, element by element.
std::pair<Matrix, Matrix> FactorGradients(
    const Matrix& dw, const Matrix& a, const Matrix& b,
    const std::vector<int64_t>& projections) {
  Matrix da = {a.rows, a.columns}, db = {b.rows, b.columns};
  for (int64_t i = 0; i < dw.rows; ++i) {
    for (int64_t j = 0; j < dw.columns; ++j) {
      for (int64_t k = 0; k < kRank; ++k) {
        const int64_t row = projections[static_cast<size_t>(i)] * kRank + k;
        da.at(row, j) += kAlpha / kRank * b.at(i, k) * dw.at(i, j);
        db.at(i, k) += kAlpha / kRank * a.at(row, j) * dw.at(i, j);
      }
    }
  }
  return {da, db};
}

#define EXPECT_SAME(actual, expected) \
  EXPECT_THAT((actual).values, Pointwise(DoubleNear(1e-12), (expected).values))

// `projections` has the projection of each output.
template <typename Layer>
void ExpectIsMergedLayer(CpuOps& ops, Layer layer,
                         const std::vector<int64_t>& projections,
                         bool is_frozen, bool apart) {
  SCOPED_TRACE(testing::Message()
               << "frozen " << is_frozen << " apart " << apart);
  std::vector<Parameter*> parameters;
  layer.AppendParameters("layer", parameters);
  std::vector<std::string> names;
  for (Parameter* parameter : parameters) {
    names.push_back(parameter->name());
    TESSERA_ASSERT_OK(
        parameter->FillNormal(ops, {.seed = 3, .stream = names.size()}, 0.5));
    if (is_frozen && !IsLoraFactor(parameter->name())) parameter->Freeze();
  }
  EXPECT_THAT(names,
              ElementsAre("layer.weight", "layer.lora_a", "layer.lora_b"));
  const Partition tokens = *Partition::Balanced(kTokens, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Tensor x,
                               RandomTensor(DType::kF64, {{kTokens, kIn}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Tensor dy,
                               RandomTensor(DType::kF64, {{kTokens, kOut}}, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF64, {{kTokens, kOut}}, 3));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor dx,
                               RandomTensor(DType::kF64, {{kTokens, kIn}}, 4));
  TESSERA_ASSERT_OK(layer.Forward(tokens, x.view(), y.view()));
  if (apart) {
    TESSERA_ASSERT_OK(layer.BackwardInput(tokens, dy.view(), dx.view()));
    TESSERA_ASSERT_OK(layer.BackwardWeight(tokens, dy.view(), x.view()));
  } else {
    TESSERA_ASSERT_OK(layer.Backward(tokens, dy.view(), x.view(), dx.view()));
  }
  TESSERA_ASSERT_OK(layer.FinishGradients());
  const Matrix a = MatrixOf(layer.adapter()->a().value());
  const Matrix b = MatrixOf(layer.adapter()->b().value());
  const Matrix merged =
      Merged(MatrixOf(layer.weights().weight()), a, b, projections);
  EXPECT_SAME(MatrixOf(y.view()),
              Product(MatrixOf(x.view()), Transposed(merged)));
  EXPECT_SAME(MatrixOf(dx.view()), Product(MatrixOf(dy.view()), merged));
  const Matrix dw =
      Product(Transposed(MatrixOf(dy.view())), MatrixOf(x.view()));
  const auto [da, db] = FactorGradients(dw, a, b, projections);
  EXPECT_SAME(MatrixOf(layer.adapter()->a().gradient()), da);
  EXPECT_SAME(MatrixOf(layer.adapter()->b().gradient()), db);
  if (is_frozen) {
    EXPECT_FALSE(layer.weights().weight_parameter().has_gradient());
  } else {
    EXPECT_SAME(MatrixOf(layer.weights().weight_gradient()), dw);
  }
}

TEST(LoraAdapterTest, LayersAreThoseOfTheMergedMatrix) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const LoraOptions lora = {.rank = kRank, .alpha = kAlpha};
  for (const bool is_frozen : {false, true}) {
    for (const bool apart : {false, true}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          auto fused,
          ColumnParallelLinear::Create(
              group, {.in = kIn,
                      .out = kOut,
                      .dtype = DType::kF64,
                      .parts = {{.size = 4}, {.size = 2}, {.size = 3}},
                      .lora = lora}));
      ExpectIsMergedLayer(ops, std::move(fused), {0, 0, 0, 0, 1, 1, 2, 2, 2},
                          is_frozen, apart);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          auto rows, RowParallelLinear::Create(group, {.in = kIn,
                                                       .out = kOut,
                                                       .columns = {0, kIn},
                                                       .dtype = DType::kF64,
                                                       .lora = lora}));
      ExpectIsMergedLayer(ops, std::move(rows), std::vector<int64_t>(kOut, 0),
                          is_frozen, apart);
    }
  }
}

TEST(LoraAdapterTest, FrozenLayersWithoutAdapterHaveNoGradients) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto layer, ColumnParallelLinear::Create(
                      group, {.in = kIn, .out = kOut, .dtype = DType::kF64}));
  layer.weights().weight_parameter().Freeze();
  const Partition tokens = *Partition::Balanced(kTokens, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Tensor x,
                               RandomTensor(DType::kF64, {{kTokens, kIn}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Tensor dy,
                               RandomTensor(DType::kF64, {{kTokens, kOut}}, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor dx,
                               RandomTensor(DType::kF64, {{kTokens, kIn}}, 4));
  TESSERA_ASSERT_OK(layer.Backward(tokens, dy.view(), x.view(), dx.view()));
  TESSERA_ASSERT_OK(layer.FinishGradients());
  EXPECT_FALSE(layer.weights().weight_parameter().has_gradient());
  EXPECT_SAME(MatrixOf(dx.view()),
              Product(MatrixOf(dy.view()), MatrixOf(layer.weights().weight())));
}

TEST(LoraAdapterTest, WrongOptionsAndReleasedFactorsAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  EXPECT_THAT(ColumnParallelLinear::Create(
                  group, {.in = kIn, .out = kOut, .lora = {.rank = -1}})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a LoRA adapter of rank -1")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto layer, ColumnParallelLinear::Create(
                      group, {.in = kIn, .out = kOut, .lora = {.rank = 2}}));
  std::vector<Parameter*> parameters;
  layer.AppendParameters("up", parameters);
  layer.adapter()->b().Release();
  EXPECT_THAT(
      layer.CheckValues(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("up.lora_b")));
  layer.adapter()->a().ReleaseGradient();
  EXPECT_THAT(
      layer.CheckGradients(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("up.lora_a")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
