// The embedding over a sharded vocabulary matches one rank.
#include "tensor_parallel/layers/vocabulary.h"

#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr RandomKey kTable = {.seed = 5, .stream = 1};
// Not divisible by any number of ranks; fewer than the most ranks.
constexpr int64_t kVocabulary = 7;
constexpr int64_t kWidth = 5;

// Ids that repeat and do not cover the vocabulary.
std::vector<int64_t> IdsFor(int64_t tokens) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((i * i + 1) % kVocabulary);
  return ids;
}

struct EmbeddingResults {
  Tensor y;
  Tensor table_gradient;
};

absl::StatusOr<EmbeddingResults> RunEmbedding(const TensorGroup& group,
                                              const LayerCase& c,
                                              const Partition& tokens,
                                              ConstTensorView y_gradient) {
  TESSERA_ASSIGN_OR_RETURN(auto layer, VocabularyParallelEmbedding::Create(
                                           group, {.vocabulary = kVocabulary,
                                                   .width = kWidth,
                                                   .dtype = c.dtype}));
  TESSERA_RETURN_IF_ERROR(layer.weights().FillNormal(group.ops(), kTable, 1));
  const std::vector<int64_t> ids = IdsFor(c.tokens);
  const int64_t shape[] = {y_gradient.shape()[0], kWidth};
  TESSERA_ASSIGN_OR_RETURN(Tensor y, Tensor::Create(c.dtype, shape));
  TESSERA_RETURN_IF_ERROR(layer.Forward(tokens, ListOf(ids), y.view()));
  TESSERA_RETURN_IF_ERROR(
      layer.BackwardWeight(tokens, ListOf(ids), y_gradient));
  const IndexRange rows = {0, layer.weights().out()};
  TESSERA_ASSIGN_OR_RETURN(
      Tensor gradient, Take(layer.weights().weight_gradient(), 0, {{rows}}));
  return EmbeddingResults{std::move(y), std::move(gradient)};
}

absl::Status CheckEmbedding(Communicator& communicator, const LayerCase& c) {
  CpuOps ops({.threads = 1});
  const TensorGroup group =
      TensorGroup(ops, &communicator).WithSequenceParallel(c.sequence_parallel);
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                           RandomTensor(c.dtype, {{c.tokens, kWidth}}, 2));
  TESSERA_ASSIGN_OR_RETURN(
      const EmbeddingResults want,
      RunEmbedding(TensorGroup(ops), c, *Partition::Balanced(c.tokens, 1),
                   gradient.view()));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(c.tokens, c.ranks));
  const IndexRange mine = group.TokensBetweenLayers(tokens);
  TESSERA_ASSIGN_OR_RETURN(Tensor my_gradient,
                           Take(gradient.view(), 0, {{mine}}));
  TESSERA_ASSIGN_OR_RETURN(const EmbeddingResults got,
                           RunEmbedding(group, c, tokens, my_gradient.view()));
  // Bit for bit: sums with zeros, and gradients in the same order.
  TESSERA_ASSIGN_OR_RETURN(Tensor y, Take(want.y.view(), 0, {{mine}}));
  TESSERA_RETURN_IF_ERROR(ExpectNear("y", got.y.view(), y.view(), 0));
  TESSERA_ASSIGN_OR_RETURN(const Partition rows,
                           Partition::Balanced(kVocabulary, c.ranks));
  TESSERA_ASSIGN_OR_RETURN(Tensor table, Take(want.table_gradient.view(), 0,
                                              {{rows.RangeOf(group.rank())}}));
  return ExpectNear("table gradient", got.table_gradient.view(), table.view(),
                    0);
}

class VocabularyTest : public ::testing::TestWithParam<LayerCase> {};

TEST_P(VocabularyTest, EmbeddingsAreThoseOfOneRankToTheLastBit) {
  const LayerCase c = GetParam();
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckEmbedding(communicator, c);
                       }),
              Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(AllCases, VocabularyTest,
                         ::testing::ValuesIn(AllLayerCases()));

TEST(VocabularyParallelEmbeddingTest, WrongIdsAreRefused) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto layer, VocabularyParallelEmbedding::Create(
                      TensorGroup(ops), {.vocabulary = 4, .width = 2}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor y,
                               RandomTensor(DType::kF32, {{2, 2}}, 1));
  const Partition tokens = *Partition::Balanced(2, 1);
  const std::vector<int32_t> narrow = {0, 3};
  const std::vector<int64_t> one = {0};
  EXPECT_THAT(layer.Forward(tokens, ListOf(narrow), y.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("i32 [2] ids for 2 tokens; give i64")));
  EXPECT_THAT(layer.Forward(tokens, ListOf(one), y.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("i64 [1] ids for 2 tokens")));
  EXPECT_THAT(
      VocabularyParallelEmbedding::Create(TensorGroup(ops),
                                          {.vocabulary = 4, .width = -2})
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("width -2")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
