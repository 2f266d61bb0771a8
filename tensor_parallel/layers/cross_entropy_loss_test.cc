// The loss over a sharded vocabulary matches its definition.
#include "tensor_parallel/layers/cross_entropy_loss.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

// Not divisible by any number of ranks; fewer than the most ranks.
constexpr int64_t kVocabulary = 7;

// Targets that repeat and do not cover the vocabulary.
std::vector<int64_t> TargetsFor(int64_t tokens) {
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < tokens; ++i) {
    targets.push_back((i * i + 1) % kVocabulary);
  }
  return targets;
}

// Losses and their gradient by definition, in float64.
struct Loss {
  std::vector<double> losses;
  std::vector<double> gradient;  // [tokens, vocabulary]
};

Loss PlainLoss(const std::vector<double>& logits,
               const std::vector<int64_t>& targets,
               const std::vector<double>& scales, const LossTerms& terms) {
  Loss loss;
  constexpr auto kWords = static_cast<size_t>(kVocabulary);
  for (size_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + t * kWords;
    double sum = 0;
    for (size_t v = 0; v < kWords; ++v) sum += std::exp(row[v]);
    const auto target = static_cast<size_t>(targets[t]);
    loss.losses.push_back(std::log(sum) - row[target]);
    const double z = 2 * terms.z_loss * std::log(sum);
    for (size_t v = 0; v < kWords; ++v) {
      const double label =
          (v == target ? 1 - terms.label_smoothing : 0) +
          terms.label_smoothing / static_cast<double>(kVocabulary);
      loss.gradient.push_back(scales[t] *
                              (std::exp(row[v]) / sum * (1 + z) - label));
    }
  }
  return loss;
}

absl::Status CheckLoss(Communicator& communicator, const LayerCase& c,
                       const LossTerms& terms) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops, &communicator);
  TESSERA_ASSIGN_OR_RETURN(const Partition vocabulary,
                           Partition::Balanced(kVocabulary, c.ranks));
  TESSERA_ASSIGN_OR_RETURN(Tensor logits,
                           RandomTensor(c.dtype, {{c.tokens, kVocabulary}}, 3));
  const std::vector<int64_t> targets = TargetsFor(c.tokens);
  std::vector<double> scales;
  for (int64_t t = 0; t < c.tokens; ++t) {
    scales.push_back(t == 1 ? 0 : 1.0 / static_cast<double>(t + 1));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> values,
                           ValuesOf(logits.view()));
  const Loss want = PlainLoss(values, targets, scales, terms);
  const IndexRange held = vocabulary.RangeOf(group.rank());
  TESSERA_ASSIGN_OR_RETURN(Tensor mine, Take(logits.view(), 1, {{held}}));
  VocabularyParallelCrossEntropy loss(group, vocabulary, c.dtype, terms);
  std::vector<double> losses(targets.size());
  TensorPool pool(HostMemory());
  CrossEntropyState state(pool);
  TESSERA_RETURN_IF_ERROR(
      loss.Forward(mine.view(), ListOf(targets), ListOf(losses), state));
  TESSERA_RETURN_IF_ERROR(
      loss.Backward(ListOf(scales), ListOf(targets), state, mine.view()));
  const int64_t tokens_shape[] = {c.tokens};
  const int64_t whole_shape[] = {c.tokens, kVocabulary};
  TESSERA_RETURN_IF_ERROR(ExpectNear(
      "losses",
      *ConstTensorView::Of(std::span<const double>(losses), tokens_shape),
      *ConstTensorView::Of(std::span<const double>(want.losses), tokens_shape),
      c.dtype == DType::kF64 ? 1e-12 : 1e-5));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor gradient,
      Take(*ConstTensorView::Of(std::span<const double>(want.gradient),
                                whole_shape),
           1, {{held}}));
  return ExpectNear("gradient", mine.view(), gradient.view(), c.tolerance());
}

class CrossEntropyLossTest : public ::testing::TestWithParam<LayerCase> {};

TEST_P(CrossEntropyLossTest, LossesAreThoseOfTheDefinition) {
  const LayerCase c = GetParam();
  if (c.sequence_parallel) return;  // Every rank has all tokens.
  for (const LossTerms& terms :
       {LossTerms{}, LossTerms{.label_smoothing = 0.25, .z_loss = 0.01}}) {
    EXPECT_THAT(RunRanks(c.ranks,
                         [&](Communicator& communicator) {
                           return CheckLoss(communicator, c, terms);
                         }),
                Each(IsOk()));
  }
}

INSTANTIATE_TEST_SUITE_P(AllCases, CrossEntropyLossTest,
                         ::testing::ValuesIn(AllLayerCases()));

// Bytes that a rank passes to all-reduces.
int64_t ReducedBytes(const Communicator& communicator) {
  int64_t bytes = 0;
  for (const auto& [what, totals] : communicator.Statistics()) {
    if (what.first == collectives::OpKind::kAllReduce) bytes += totals.bytes;
  }
  return bytes;
}

TEST(VocabularyParallelCrossEntropyTest, MovesThreeNumbersATokenOnly) {
  constexpr int64_t kTokens = 50;
  for (const int64_t words : {64, 4096}) {
    EXPECT_THAT(
        RunRanks(2,
                 [&](Communicator& communicator) -> absl::Status {
                   CpuOps ops({.threads = 1});
                   const Partition vocabulary = *Partition::Balanced(words, 2);
                   VocabularyParallelCrossEntropy loss(
                       TensorGroup(ops, &communicator), vocabulary,
                       DType::kF32);
                   TESSERA_ASSIGN_OR_RETURN(
                       Tensor logits,
                       RandomTensor(DType::kF32, {{kTokens, words / 2}}, 1));
                   std::vector<int64_t> targets(kTokens, 3);
                   std::vector<double> losses(kTokens);
                   TensorPool pool(HostMemory());
                   CrossEntropyState state(pool);
                   const int64_t before = ReducedBytes(communicator);
                   TESSERA_RETURN_IF_ERROR(loss.Forward(
                       logits.view(), ListOf(targets), ListOf(losses), state));
                   TESSERA_RETURN_IF_ERROR(loss.Backward(
                       ListOf(losses), ListOf(targets), state, logits.view()));
                   const int64_t moved = ReducedBytes(communicator) - before;
                   return moved == kTokens * 3 * 4
                              ? absl::OkStatus()
                              : absl::InternalError(std::to_string(moved));
                 }),
        Each(IsOk()));
  }
}

// Large logits do not overflow.
TEST(VocabularyParallelCrossEntropyTest, TheLargestLogitIsTakenOut) {
  CpuOps ops({.threads = 1});
  VocabularyParallelCrossEntropy loss(TensorGroup(ops),
                                      *Partition::Balanced(3, 1), DType::kF32);
  std::vector<float> logits = {1e30f, 1e30f, -1e30f};
  const int64_t shape[] = {1, 3};
  std::vector<double> losses(1);
  const std::vector<int64_t> targets = {1};
  TensorPool pool(HostMemory());
  CrossEntropyState state(pool);
  TESSERA_ASSERT_OK(loss.Forward(*TensorView::Of(std::span(logits), shape),
                                 ListOf(targets), ListOf(losses), state));
  EXPECT_NEAR(losses[0], std::log(2), 1e-6);
}

TEST(VocabularyParallelCrossEntropyTest, WrongCallsAreRefused) {
  CpuOps ops({.threads = 1});
  VocabularyParallelCrossEntropy loss(TensorGroup(ops),
                                      *Partition::Balanced(3, 1), DType::kF32);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{2, 3}}, 1));
  const std::vector<int32_t> wrong = {0, 2};
  const std::vector<int64_t> right = {0, 2};
  std::vector<double> two(2);
  std::vector<double> one(1);
  TensorPool pool(HostMemory());
  CrossEntropyState state(pool);
  EXPECT_THAT(loss.Forward(x.view(), ListOf(wrong), ListOf(two), state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("i32 [2] targets for 2 tokens; give i64")));
  EXPECT_THAT(loss.Forward(x.view(), ListOf(right), ListOf(one), state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("f64 [1] losses or scales for 2 tokens")));
  EXPECT_THAT(loss.Backward(ListOf(two), ListOf(right), state, x.view()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("there was no forward")));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor narrow,
                               RandomTensor(DType::kF32, {{2, 2}}, 1));
  EXPECT_THAT(loss.Forward(narrow.view(), ListOf(right), ListOf(two), state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("3 of the vocabulary's 3")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
