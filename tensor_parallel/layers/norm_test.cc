// Parity over ranks and gradients: tensor_parallel/blocks.
#include "tensor_parallel/layers/norm.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(NormTest, KeepsItsStatisticsInTheState) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(auto norm,
                               RmsNorm::Create(TensorGroup(ops), {.width = 4}));
  TensorPool pool(HostMemory());
  NormState first(pool), second(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor a,
                               RandomTensor(DType::kF32, {{3, 4}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor b,
                               RandomTensor(DType::kF32, {{3, 4}}, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor gradient,
                               RandomTensor(DType::kF32, {{3, 4}}, 3));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y, Tensor::Create(DType::kF32, {{3, 4}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor alone,
                               Tensor::Create(DType::kF32, {{3, 4}}));
  TESSERA_ASSERT_OK(norm.Forward(a.view(), y.view(), first));
  TESSERA_ASSERT_OK(
      norm.BackwardInput(gradient.view(), a.view(), first, alone.view()));
  // Runs another micro-batch in between.
  TESSERA_ASSERT_OK(norm.Forward(a.view(), y.view(), first));
  TESSERA_ASSERT_OK(norm.Forward(b.view(), y.view(), second));
  TESSERA_ASSERT_OK(
      norm.BackwardInput(gradient.view(), a.view(), first, y.view()));
  TESSERA_EXPECT_OK(ExpectNear("x gradient", y.view(), alone.view(), 0));
  EXPECT_GE(first.bytes(), 3 * 4);
  first.Clear();
  EXPECT_EQ(first.bytes(), 0);
}

TEST(NormTest, StatesOfOtherForwardsAreRefused) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(auto norm,
                               RmsNorm::Create(TensorGroup(ops), {.width = 4}));
  TensorPool pool(HostMemory());
  NormState state(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{3, 4}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF32, {{3, 4}}, 1));
  EXPECT_THAT(norm.BackwardInput(x.view(), x.view(), state, y.view()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("with the state of no forward")));
  TESSERA_ASSERT_OK(norm.Forward(x.view(), y.view(), state));
  const TensorView two = *x.view().Narrow(0, 0, 2);
  EXPECT_THAT(norm.BackwardWeight(two, two, state),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("for 2 tokens, with the state of a forward of "
                                 "3")));
  EXPECT_THAT(norm.Forward(*x.view().Select(0, 0), y.view(), state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 dimensions; give [tokens, width]")));
}

TEST(NormTest, ReleasedWeightsAreNamed) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(auto norm,
                               RmsNorm::Create(TensorGroup(ops), {.width = 4}));
  std::vector<Parameter*> parameters;
  norm.AppendParameters("final", parameters);
  TensorPool pool(HostMemory());
  NormState state(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{3, 4}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF32, {{3, 4}}, 1));
  TESSERA_ASSERT_OK(norm.Forward(x.view(), y.view(), state));
  for (Parameter* p : parameters) p->ReleaseGradient();
  EXPECT_THAT(norm.BackwardWeight(x.view(), x.view(), state),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("final.weight")));
  EXPECT_THAT(norm.FinishGradients(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  parameters.back()->Release();
  EXPECT_THAT(norm.Forward(x.view(), y.view(), state),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(parameters.back()->name())));
}

TEST(NormTest, WrongOptionsAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  EXPECT_THAT(
      RmsNorm::Create(group, {.width = -1}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("width -1")));
  for (const double epsilon :
       {-1e-5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(
        RmsNorm::Create(group, {.width = 2, .epsilon = epsilon}).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epsilon")));
  }
  EXPECT_THAT(
      RmsNorm::Create(group, {.width = 2, .dtype = DType::kI8}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weights of i8")));
}

// Nothing moves without sequence parallelism, and with it the gradients alone.
TEST(NormTest, MovesTheGradientsOfWeightsOnceAStep) {
  for (const bool sequence_parallel : {false, true}) {
    EXPECT_THAT(
        collectives::RunRanks(
            2,
            [&](Communicator& communicator) -> absl::Status {
              CpuOps ops({.threads = 1});
              TESSERA_ASSIGN_OR_RETURN(
                  auto norm,
                  RmsNorm::Create(TensorGroup(ops, &communicator)
                                      .WithSequenceParallel(sequence_parallel),
                                  {.width = 4}));
              TensorPool pool(HostMemory());
              NormState state(pool);
              TESSERA_ASSIGN_OR_RETURN(Tensor x,
                                       RandomTensor(DType::kF32, {{3, 4}}, 1));
              TESSERA_ASSIGN_OR_RETURN(Tensor y,
                                       RandomTensor(DType::kF32, {{3, 4}}, 1));
              TESSERA_RETURN_IF_ERROR(norm.Forward(x.view(), y.view(), state));
              TESSERA_RETURN_IF_ERROR(
                  norm.BackwardWeight(x.view(), x.view(), state));
              TESSERA_RETURN_IF_ERROR(norm.FinishGradients());
              std::vector<Parameter*> parameters;
              norm.AppendParameters("", parameters);
              const int64_t want =
                  sequence_parallel
                      ? static_cast<int64_t>(parameters.size()) * 4 * 4
                      : 0;
              int64_t bytes = 0;
              for (const auto& [what, totals] : communicator.Statistics()) {
                bytes += totals.bytes;
              }
              return bytes == want ? absl::OkStatus()
                                   : absl::InternalError(std::to_string(bytes));
            }),
        Each(IsOk()));
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
