#include "tensor_parallel/layers/linear_products.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 64, kIn = 96, kOut = 80;

// Relative, by the Euclidean norms.
double ErrorOf(ConstTensorView actual, ConstTensorView expected) {
  const std::vector<double> a = *ValuesOf(actual), b = *ValuesOf(expected);
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

double LargestOf(ConstTensorView x) {
  double largest = 0;
  const std::vector<double> values = *ValuesOf(x);
  for (const double value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

struct Products {
  Tensor y = *Tensor::Create(DType::kBF16, {{kTokens, kOut}});
  Tensor x_gradient = *Tensor::Create(DType::kBF16, {{kTokens, kIn}});
  Tensor weight_gradient = *Tensor::Create(DType::kF32, {{kOut, kIn}});
};

class LinearProductsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Products> Run(std::shared_ptr<Fp8Scaling> fp8) {
    TESSERA_ASSIGN_OR_RETURN(LinearProducts products,
                             LinearProducts::Create(group_, fp8));
    Products results;
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(op::Fill{1, results.weight_gradient.view()}));
    TESSERA_RETURN_IF_ERROR(products.LoadForForward(weight_.view()));
    TESSERA_RETURN_IF_ERROR(products.Forward(x_.view(), results.y.view()));
    TESSERA_RETURN_IF_ERROR(products.LoadForInputGradient(weight_.view()));
    TESSERA_RETURN_IF_ERROR(
        products.InputGradient(y_gradient_.view(), results.x_gradient.view()));
    TESSERA_RETURN_IF_ERROR(products.AddWeightGradient(
        y_gradient_.view(), x_.view(), results.weight_gradient.view()));
    return results;
  }

  CpuOps ops_{{.threads = 1}};
  TensorGroup group_{ops_};
  Tensor x_ = *RandomTensor(DType::kBF16, {{kTokens, kIn}}, 1);
  Tensor weight_ = *RandomTensor(DType::kBF16, {{kOut, kIn}}, 2);
  Tensor y_gradient_ = *RandomTensor(DType::kBF16, {{kTokens, kOut}}, 3);
};

// A mantissa of three bits is off by 2.6 percent of the value (root mean
// square), one of two bits by 5.2; both operands contribute.
TEST_F(LinearProductsTest, Fp8IsNearBf16HoweverSmallTheOperands) {
  for (const double factor : {1.0, 0x1p-30, 0x1p20}) {
    TESSERA_ASSERT_OK(ops_.Run(op::Scale{factor, y_gradient_.view()}));
    const auto fp8 = Fp8Scaling::Create(group_, {.layers = 1});
    TESSERA_ASSERT_OK(fp8);
    const auto expected = Run(nullptr);
    const auto actual = Run(*fp8);
    TESSERA_ASSERT_OK(expected);
    TESSERA_ASSERT_OK(actual);
    auto& [y, dx, dw] = const_cast<Products&>(*actual);
    auto& [want_y, want_dx, want_dw] = const_cast<Products&>(*expected);
    EXPECT_LT(ErrorOf(y.view(), want_y.view()), 0.045);
    EXPECT_GT(ErrorOf(y.view(), want_y.view()), 0.01);
    EXPECT_LT(ErrorOf(dx.view(), want_dx.view()), 0.075);
    EXPECT_LT(ErrorOf(dw.view(), want_dw.view()), 0.075);
  }
}

TEST_F(LinearProductsTest, ScalesFollowTheMagnitudesOfTheLastSteps) {
  const auto fp8 =
      Fp8Scaling::Create(group_, {.layers = 2, .history = 2, .margin = 1});
  TESSERA_ASSERT_OK(fp8);
  TESSERA_ASSERT_OK(Run(*fp8));
  const auto scales = [&] { return *ValuesOf((*fp8)->scales()); };
  TESSERA_ASSERT_OK((*fp8)->FinishStep());
  const double input = 448 / LargestOf(x_.view()) / 2;
  const double weight = 448 / LargestOf(weight_.view()) / 2;
  const double gradient = 57344 / LargestOf(y_gradient_.view()) / 2;
  const auto near = [](double x) { return ::testing::DoubleNear(x, 1e-6 * x); };
  // The second layer has seen nothing.
  EXPECT_THAT(scales(), ::testing::ElementsAre(near(input), 1, near(weight), 1,
                                               near(gradient), 1));
  TESSERA_ASSERT_OK((*fp8)->FinishStep());
  EXPECT_THAT(scales()[0], near(input));
  TESSERA_ASSERT_OK((*fp8)->FinishStep());  // Forgotten; scales stay.
  EXPECT_THAT(scales()[0], near(input));
}

TEST(Fp8ScalingTest, RanksWithPartsOfAMatrixHaveItsScale) {
  const auto scales_of =
      [](const TensorGroup& group) -> absl::StatusOr<std::vector<double>> {
    TESSERA_ASSIGN_OR_RETURN(auto fp8,
                             Fp8Scaling::Create(group, {.layers = 1}));
    TESSERA_ASSIGN_OR_RETURN(
        auto layer,
        ColumnParallelLinear::Create(
            group,
            {.in = kIn, .out = kOut, .dtype = DType::kBF16, .fp8 = fp8}));
    TESSERA_RETURN_IF_ERROR(
        layer.weights().FillNormal(group.ops(), {.seed = 5}, 0.5));
    TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                             Partition::Balanced(kTokens, group.size()));
    TESSERA_ASSIGN_OR_RETURN(Tensor x,
                             RandomTensor(DType::kBF16, {{kTokens, kIn}}, 1));
    TESSERA_ASSIGN_OR_RETURN(
        Tensor y, Tensor::Create(DType::kBF16, {{kTokens, layer.local_out()}}));
    TESSERA_RETURN_IF_ERROR(layer.Forward(tokens, x.view(), y.view()));
    TESSERA_RETURN_IF_ERROR(fp8->FinishStep());
    return ValuesOf(fp8->scales());
  };
  CpuOps ops({.threads = 1});
  const auto whole = scales_of(TensorGroup(ops));
  TESSERA_ASSERT_OK(whole);
  EXPECT_NE((*whole)[1], 1);
  EXPECT_THAT(collectives::RunRanks(
                  4,
                  [&](collectives::Communicator& communicator) -> absl::Status {
                    CpuOps mine({.threads = 1});
                    TESSERA_ASSIGN_OR_RETURN(
                        const std::vector<double> part,
                        scales_of(TensorGroup(mine, &communicator)));
                    EXPECT_EQ(part, *whole);
                    return absl::OkStatus();
                  }),
              Each(IsOk()));
}

TEST(Fp8ScalingTest, ScalesCoverTokensOfAllRanks) {
  const Tensor x = *RandomTensor(DType::kBF16, {{kTokens, kIn}}, 1);
  const Tensor w = *RandomTensor(DType::kBF16, {{kOut, kIn}}, 2);
  // Casts `rows` rows of x from `first` on in a step.
  const auto scales_of = [&](int64_t first, int64_t rows,
                             collectives::Communicator* replicas)
      -> absl::StatusOr<std::vector<double>> {
    CpuOps ops({.threads = 1});
    const TensorGroup group(ops);
    TESSERA_ASSIGN_OR_RETURN(const auto fp8,
                             Fp8Scaling::Create(group, {.layers = 1}));
    TESSERA_ASSIGN_OR_RETURN(LinearProducts products,
                             LinearProducts::Create(group, fp8));
    TESSERA_RETURN_IF_ERROR(products.LoadForForward(w.view()));
    TESSERA_ASSIGN_OR_RETURN(Tensor y,
                             Tensor::Create(DType::kBF16, {{rows, kOut}}));
    TESSERA_RETURN_IF_ERROR(
        products.Forward(*x.view().Narrow(0, first, rows), y.view()));
    TESSERA_RETURN_IF_ERROR(fp8->FinishStep(replicas));
    return ValuesOf(fp8->scales());
  };
  const auto whole = scales_of(0, kTokens, nullptr);
  TESSERA_ASSERT_OK(whole);
  int others = 0;
  for (int64_t r = 0; r < 4; ++r) {
    others += *scales_of(r * kTokens / 4, kTokens / 4, nullptr) != *whole;
  }
  EXPECT_EQ(others, 3);  // One has the largest magnitude.
  EXPECT_THAT(collectives::RunRanks(
                  4,
                  [&](collectives::Communicator& replicas) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        const std::vector<double> scales,
                        scales_of(replicas.rank().value() * kTokens / 4,
                                  kTokens / 4, &replicas));
                    EXPECT_EQ(scales, *whole);
                    return absl::OkStatus();
                  }),
              Each(IsOk()));
}

// Layers continue in an object with other layers as if nothing had happened.
TEST(Fp8ScalingTest, RestoresCopiedLayers) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const auto create = [&](int64_t layers) {
    return *Fp8Scaling::Create(group, {.layers = layers, .history = 3});
  };
  // One step of `count` layers from `first` on of a model of five.
  const auto step = [&](Fp8Scaling& fp8, int64_t number, int64_t first,
                        int64_t count) {
    for (int64_t layer = 0; layer < count; ++layer) {
      for (const auto operand :
           {Fp8Scaling::Operand::kInput, Fp8Scaling::Operand::kWeight,
            Fp8Scaling::Operand::kOutputGradient}) {
        const Tensor x = *RandomTensor(
            DType::kBF16, {{2, 3}},
            static_cast<uint64_t>(100 * number + 10 * (first + layer) +
                                  static_cast<int64_t>(operand)));
        TESSERA_EXPECT_OK(
            fp8.CastTo(fp8.first(), layer, operand, x.view(), false));
      }
    }
    TESSERA_EXPECT_OK(fp8.FinishStep());
  };
  const auto whole = create(5), part = create(2);
  for (int64_t i = 0; i < 5; ++i) step(*whole, i, 0, 5);
  const std::string copy =
      Fp8Scaling::CopyLayers(whole->state(), whole->capacity(), 2, 2);
  EXPECT_EQ(copy.size(), static_cast<size_t>(2 * whole->LayerBytes()));
  part->SetLayers(copy, 0, 2, part->state());
  part->set_has_history(true);
  for (int64_t i = 5; i < 9; ++i) {
    EXPECT_EQ(Fp8Scaling::CopyLayers(part->state(), part->capacity(), 0, 2),
              Fp8Scaling::CopyLayers(whole->state(), whole->capacity(), 2, 2));
    step(*whole, i, 0, 5);
    step(*part, i, 2, 2);
  }
}

TEST(Fp8ScalingTest, RefusesOptionsOutsideTheirRangesAndTooManyLayers) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  for (const Fp8Options& options :
       {Fp8Options{.layers = -1}, Fp8Options{.layers = 1, .history = 0},
        Fp8Options{.layers = 1, .history = 1025},
        Fp8Options{.layers = 1, .margin = -1}}) {
    EXPECT_THAT(Fp8Scaling::Create(group, options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("1 to 1024 steps")));
  }
  const auto fp8 = Fp8Scaling::Create(group, {.layers = 1});
  TESSERA_ASSERT_OK(fp8);
  const RowParallelOptions options = {.in = 16,
                                      .out = 16,
                                      .columns = {0, 16},
                                      .dtype = DType::kBF16,
                                      .fp8 = *fp8};
  TESSERA_ASSERT_OK(RowParallelLinear::Create(group, options));
  EXPECT_THAT(RowParallelLinear::Create(group, options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("Fp8Options::layers")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
