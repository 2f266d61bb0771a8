#include "tensor_parallel/layers/parameter.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RandomKey kKey = {.seed = 4, .stream = 2};

Parameter::Spec Matrix() {
  return {.name = "w",
          .shape = {9, 5},
          .rows = {{{1, 3}}, {{6, 7}, false}},
          .columns = {2, 5},
          .dtype = DType::kF64};
}

class ParameterTest : public ::testing::Test {
 protected:
  CpuOps ops_{{.threads = 1}};
  const TensorGroup group_{ops_};
};
using LinearWeightsTest = ParameterTest;

TEST_F(ParameterTest, BeginsWithZerosOfItsPart) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Parameter p,
                               Parameter::Create(group_, Matrix()));
  EXPECT_THAT(p.local_shape(), ElementsAre(3, 3));
  EXPECT_EQ(p.element_count(), 9);
  EXPECT_THAT(*ValuesOf(p.value()), Each(0));
  EXPECT_THAT(*ValuesOf(p.gradient()), Each(0));
  TESSERA_EXPECT_OK(p.CheckValue());
  TESSERA_EXPECT_OK(p.CheckGradient());
}

TEST_F(ParameterTest, ValuesAreThoseOfTheirPlaceInTheWhole) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p,
                               Parameter::Create(group_, Matrix()));
  TESSERA_ASSERT_OK(p.FillNormal(ops_, kKey, 0.5));
  const Philox random(kKey);
  std::vector<double> want;
  for (const uint64_t row : {1, 2, 6}) {
    for (const uint64_t column : {2, 3, 4}) {
      want.push_back(random.Normal(row * 5 + column) * 0.5);
    }
  }
  EXPECT_THAT(ValuesOf(p.value()), IsOkAndHolds(want));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Parameter vector,
      Parameter::Create(
          group_, {.shape = {8}, .rows = {{{3, 5}}}, .dtype = DType::kF64}));
  TESSERA_ASSERT_OK(vector.FillNormal(ops_, kKey, 1));
  EXPECT_THAT(ValuesOf(vector.value()),
              IsOkAndHolds(std::vector{random.Normal(3), random.Normal(4)}));
}

// Any range of elements gets the numbers that the whole parameter has there.
TEST_F(ParameterTest, DrawsAnyOfItsNumbersWithoutMemory) {
  for (const IndexRange columns : {IndexRange{2, 5}, IndexRange{0, 5}}) {
    Parameter::Spec spec = Matrix();
    spec.columns = columns;
    TESSERA_ASSERT_OK_AND_ASSIGN(Parameter whole,
                                 Parameter::Create(group_, spec));
    TESSERA_ASSERT_OK(whole.FillNormal(ops_, kKey, 0.5));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<double> want,
                                 ValuesOf(whole.value()));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Parameter p,
        Parameter::Create(group_.WithoutWeightMemory(), spec));
    for (size_t begin = 0; begin <= want.size(); ++begin) {
      for (size_t end = begin; end <= want.size(); ++end) {
        std::vector<double> drawn(end - begin);
        TESSERA_EXPECT_OK(
            p.DrawNormals(kKey, 0.5, static_cast<int64_t>(begin),
                          std::as_writable_bytes(std::span(drawn))));
        EXPECT_EQ(drawn, std::vector<double>(want.begin() + begin,
                                             want.begin() + end));
      }
    }
  }
}

TEST_F(ParameterTest, MayBeginReleased) {
  Parameter::Spec spec = Matrix();
  spec.dtype = DType::kBF16;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Parameter p, Parameter::Create(group_.WithoutWeightMemory(), spec));
  EXPECT_FALSE(p.has_value());
  EXPECT_FALSE(p.has_gradient());
  EXPECT_EQ(p.gradient_dtype(), DType::kF32);
  EXPECT_THAT(p.CheckValue(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("w")));
  EXPECT_THAT(p.FillNormal(ops_, kKey, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor bound,
                               Tensor::Create(DType::kBF16, {{3, 3}}));
  TESSERA_ASSERT_OK(p.Bind(bound.view()));
  TESSERA_EXPECT_OK(p.FillNormal(ops_, kKey, 1));
}

TEST_F(ParameterTest, GradientsOfNarrowTypesAreF32UntilBound) {
  Parameter::Spec spec = Matrix();
  spec.dtype = DType::kBF16;
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p, Parameter::Create(group_, spec));
  EXPECT_EQ(p.dtype(), DType::kBF16);
  EXPECT_EQ(p.gradient_dtype(), DType::kF32);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor narrow,
                               RandomTensor(DType::kBF16, {{3, 3}}, 1));
  TESSERA_ASSERT_OK(p.BindGradient(narrow.view()));
  EXPECT_EQ(p.gradient_dtype(), DType::kBF16);
  TESSERA_ASSERT_OK(p.ZeroGradient(ops_));
  EXPECT_THAT(*ValuesOf(narrow.view()), Each(0));
}

TEST_F(ParameterTest, BoundMemoryIsTheParameter) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p,
                               Parameter::Create(group_, Matrix()));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor memory,
                               RandomTensor(DType::kF64, {{3, 3}}, 1));
  TESSERA_ASSERT_OK(p.Bind(memory.view()));
  EXPECT_EQ(p.value().data(), memory.view().data());
  TESSERA_ASSERT_OK(p.Fill(ops_, 3));
  EXPECT_THAT(*ValuesOf(memory.view()), Each(3));
  p.Release();
  EXPECT_FALSE(p.has_value());
  EXPECT_TRUE(p.has_gradient());
  EXPECT_EQ(p.value().element_count(), 0);
  EXPECT_THAT(p.CheckValue(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       "parameter \"w\" is released; bind its "
                                       "values first"));
  EXPECT_THAT(p.Fill(ops_, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(p.FillNormal(ops_, kKey, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  p.ReleaseGradient();
  EXPECT_THAT(p.ZeroGradient(ops_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the gradient of parameter \"w\"")));
}

TEST_F(ParameterTest, MovingKeepsItsMemory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p,
                               Parameter::Create(group_, Matrix()));
  TESSERA_ASSERT_OK(p.Fill(ops_, 2));
  Parameter moved = std::move(p);
  EXPECT_THAT(*ValuesOf(moved.value()), Each(2));
}

TEST_F(ParameterTest, MemoryThatDoesNotFitIsRefusedAndNothingLost) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p,
                               Parameter::Create(group_, Matrix()));
  TESSERA_ASSERT_OK(p.Fill(ops_, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor other,
                               RandomTensor(DType::kF64, {{3, 4}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor narrow,
                               RandomTensor(DType::kF32, {{3, 3}}, 1));
  EXPECT_THAT(
      p.Bind(other.view()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("the value of parameter \"w\" was to be f64 of "
                         "3 x 4; it should be contiguous, f64 of 3 x "
                         "3")));
  EXPECT_THAT(
      p.Bind(*other.view().Narrow(1, 0, 3)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with gaps")));
  EXPECT_THAT(p.BindGradient(narrow.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the gradient of")));
  EXPECT_THAT(*ValuesOf(p.value()), Each(2));
  EXPECT_TRUE(p.has_gradient());
}

TEST_F(ParameterTest, PartsOutsideTheWholeAreRefused) {
  const auto refusal = [this](auto change) {
    Parameter::Spec spec = Matrix();
    change(spec);
    return std::string(Parameter::Create(group_, spec).status().message());
  };
  EXPECT_THAT(refusal([](auto& s) { s.rows[1].range.end = 10; }),
              HasSubstr("\"w\" holds rows 6 to 10 of 9"));
  EXPECT_THAT(refusal([](auto& s) {
                s.rows[0].range = {3, 2};
              }),
              HasSubstr("rows 3 to 2"));
  EXPECT_THAT(refusal([](auto& s) {
                s.columns = {0, 6};
              }),
              HasSubstr("columns 0 to 6 of 5"));
  EXPECT_THAT(refusal([](auto& s) { s.shape = {9}; }),
              HasSubstr("0 to 1 for a vector"));
  EXPECT_THAT(refusal([](auto& s) { s.shape = {}; }),
              HasSubstr("of 0 dimensions"));
  EXPECT_THAT(refusal([](auto& s) { s.dtype = DType::kI8; }),
              HasSubstr("weights of i8; f64, f32, bf16 and f16 are allowed"));
}

TEST_F(ParameterTest, DescribesWhatItIsAPartOfAnew) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Parameter p,
                               Parameter::Create(group_, Matrix()));
  TESSERA_ASSERT_OK(p.Describe({20, 5}, {{{10, 12}, false}, {{6, 7}}}, true));
  EXPECT_THAT(p.shape(), ElementsAre(20, 5));
  EXPECT_TRUE(p.replicated());
  EXPECT_FALSE(p.rows()[0].primary);
  EXPECT_THAT(p.Describe({20, 5}, {{{10, 13}}}, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 ranges of rows in 2 dimensions")));
  EXPECT_EQ(p.rows().size(), 2u);
}

TEST_F(LinearWeightsTest, NamesWeightAndBias) {
  TESSERA_ASSERT_OK_AND_ASSIGN(LinearWeights weights,
                               LinearWeights::Create(group_, {.in = 4,
                                                              .rows = {{2, 4}},
                                                              .columns = {0, 4},
                                                              .bias = true,
                                                              .out = 6}));
  std::vector<Parameter*> parameters;
  weights.AppendParameters("mlp.down", parameters);
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0]->name(), "mlp.down.weight");
  EXPECT_THAT(parameters[0]->shape(), ElementsAre(6, 4));
  EXPECT_EQ(parameters[1]->name(), "mlp.down.bias");
  EXPECT_THAT(parameters[1]->shape(), ElementsAre(6));
  parameters[1]->Release();
  EXPECT_THAT(weights.CheckValues(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("mlp.down.bias")));
  parameters[0]->ReleaseGradient();
  EXPECT_THAT(weights.CheckGradients(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("mlp.down.weight")));
  EXPECT_EQ(weights.out(), 2);
  weights.AppendParameters("", parameters);
  EXPECT_EQ(parameters[0]->name(), "weight");
}

}  // namespace
}  // namespace tessera::tensor_parallel
