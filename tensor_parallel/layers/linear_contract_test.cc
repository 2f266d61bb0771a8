// Errors of linear layers, and the bytes they move.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

// The same bytes move, in one message per chunk.
TEST(LinearTrafficTest, ChunksMoveTheSameBytes) {
  constexpr int64_t kTokens = 24, kIn = 5, kOut = 8;
  for (const int64_t chunks : {0, 4}) {
    EXPECT_THAT(
        RunRanks(
            3,
            [&](Communicator& communicator) -> absl::Status {
              CpuOps ops({.threads = 1});
              const auto group = TensorGroup(ops, &communicator)
                                     .WithSequenceParallel()
                                     .WithOverlapChunks(chunks);
              TESSERA_ASSIGN_OR_RETURN(
                  auto layer,
                  ColumnParallelLinear::Create(
                      group, {.in = kIn, .out = kOut, .dtype = DType::kF64}));
              TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                                       Partition::Balanced(kTokens, 3));
              TESSERA_ASSIGN_OR_RETURN(
                  Tensor x, RandomTensor(DType::kF64, {{kTokens / 3, kIn}}, 1));
              TESSERA_ASSIGN_OR_RETURN(
                  Tensor dx,
                  RandomTensor(DType::kF64, {{kTokens / 3, kIn}}, 3));
              TESSERA_ASSIGN_OR_RETURN(
                  Tensor y,
                  RandomTensor(DType::kF64, {{kTokens, layer.local_out()}}, 2));
              TESSERA_RETURN_IF_ERROR(
                  layer.Forward(tokens, x.view(), y.view()));
              TESSERA_RETURN_IF_ERROR(
                  layer.Backward(tokens, y.view(), x.view(), dx.view()));
              int64_t count = 0, bytes = 0;
              for (const auto& [key, totals] : communicator.Statistics()) {
                count += totals.count;
                bytes += totals.bytes;
              }
              // x is gathered twice, the sums of its gradient are scattered.
              if (bytes == 3 * kTokens * kIn * 8 &&
                  count == 3 * std::max<int64_t>(1, chunks)) {
                return absl::OkStatus();
              }
              return absl::InternalError(
                  absl::StrCat(bytes, " bytes in ", count, " operations"));
            }),
        Each(IsOk()));
  }
}

TEST(LinearRefusalTest, WrongSizesAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  EXPECT_THAT(
      ColumnParallelLinear::Create(group, {.in = -1, .out = 4}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("-1 inputs and 4 outputs")));
  EXPECT_THAT(ColumnParallelLinear::Create(
                  group, {.in = 2, .out = 5, .parts = GatedMlpParts(3)})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("5 outputs whose parts have 6")));
  EXPECT_THAT(ColumnParallelLinear::Create(
                  group, {.in = 2, .out = 5, .dtype = DType::kI32})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("weights of i32; f64, f32, bf16 and f16")));
  EXPECT_THAT(
      ColumnParallelLinear::Create(group.WithOverlapChunks(-2),
                                   {.in = 2, .out = 5})
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in -2 chunks")));
  EXPECT_THAT(
      RowParallelLinear::Create(group.WithOverlapChunks(-1),
                                {.in = 2, .out = 5, .columns = {0, 2}})
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in -1 chunks")));
  EXPECT_THAT(
      RowParallelLinear::Create(group, {.in = 2, .out = 5, .columns = {0, 3}})
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 to 3")));
  EXPECT_THAT(
      ReplicatedLinear::Create(group, {.in = 2, .outs = {5, -1}}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("2 inputs and -1 outputs")));
}

TEST(LinearRefusalTest, ShapesThatDoNotFitAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const Partition tokens = *Partition::Balanced(4, 1);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto columns, ColumnParallelLinear::Create(group, {.in = 2, .out = 3}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto rows,
      RowParallelLinear::Create(group, {.in = 2, .out = 3, .columns = {0, 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{4, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF32, {{4, 3}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor more,
                               RandomTensor(DType::kF32, {{5, 3}}, 1));
  TESSERA_EXPECT_OK(columns.Forward(tokens, x.view(), y.view()));
  EXPECT_THAT(columns.Forward(tokens, x.view(), more.view()),
              StatusIs(kInvalid, HasSubstr("y has shape [5,3]; it should have "
                                           "a row for each of 4 tokens")));
  EXPECT_THAT(
      columns.Backward(tokens, more.view(), x.view(), x.view()),
      StatusIs(kInvalid, HasSubstr("the gradient of y has shape [5,3]")));
  EXPECT_THAT(rows.Forward(tokens, x.view(), more.view()),
              StatusIs(kInvalid, HasSubstr("y has shape [5,3]; it should have "
                                           "a row for each of 4 tokens")));
  EXPECT_THAT(rows.BackwardInput(tokens, more.view(), x.view()),
              StatusIs(kInvalid, HasSubstr("the gradient of y has shape")));
  EXPECT_THAT(rows.BackwardWeight(tokens, y.view(), more.view()),
              StatusIs(kInvalid, HasSubstr("x has shape [5,3]")));
}

TEST(LinearRefusalTest, TokensOfAnotherGroupAreRefused) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto layer,
      ColumnParallelLinear::Create(TensorGroup(ops).WithSequenceParallel(),
                                   {.in = 2, .out = 2}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{4, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF32, {{4, 2}}, 1));
  EXPECT_THAT(layer.Forward(*Partition::Balanced(4, 2), x.view(), y.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("among 2 ranks; the group has 1")));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor more,
                               RandomTensor(DType::kF32, {{5, 2}}, 1));
  EXPECT_THAT(
      layer.Forward(*Partition::Balanced(5, 1), x.view(), more.view()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("has 4 tokens; it should be contiguous, of 5")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
