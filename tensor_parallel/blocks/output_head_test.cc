// Memory, tied tables and errors. Results are compared in parity_test.cc and
// reference_test.cc.
#include "tensor_parallel/blocks/output_head.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/layers/vocabulary.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 6;
constexpr int64_t kVocabulary = 11;
constexpr int64_t kTokens = 8;
constexpr OutputHeadOptions kOptions = {
    .width = kWidth, .vocabulary = kVocabulary, .dtype = DType::kF64};
constexpr EmbeddingOptions kEmbedding = {
    .vocabulary = kVocabulary, .width = kWidth, .dtype = DType::kF64};

std::vector<int64_t> Words(int64_t tokens, int64_t step) {
  std::vector<int64_t> words;
  for (int64_t i = 0; i < tokens; ++i) {
    words.push_back((i * step + 1) % kVocabulary);
  }
  return words;
}

// Runs embedding and head; the gradients of both add up.
absl::Status RunModel(VocabularyParallelEmbedding& embedding, OutputHead& head,
                      const Partition& tokens, TensorPool& pool) {
  TESSERA_ASSIGN_OR_RETURN(Tensor x,
                           Tensor::Create(DType::kF64, {{kTokens, kWidth}}));
  HeadActivations activations(pool);
  std::vector<double> losses(kTokens);
  const std::vector<double> scales(kTokens, 0.5);
  const std::vector<int64_t> ids = Words(kTokens, 3);
  const std::vector<int64_t> targets = Words(kTokens, 4);
  TESSERA_RETURN_IF_ERROR(embedding.Forward(tokens, ListOf(ids), x.view()));
  TESSERA_RETURN_IF_ERROR(head.Forward(tokens, x.view(), ListOf(targets),
                                       ListOf(losses), activations));
  TESSERA_RETURN_IF_ERROR(
      head.BackwardInput(ListOf(scales), x.view(), activations));
  TESSERA_RETURN_IF_ERROR(head.BackwardWeight(activations));
  return embedding.BackwardWeight(tokens, ListOf(ids), x.view());
}

// If tied, the table's gradient is the sum of those of two equal tables.
absl::Status CheckTied(const TensorGroup& group) {
  const Partition tokens = *Partition::Balanced(kTokens, group.size());
  TensorPool pool(HostMemory());
  const RandomKey key = {.seed = 1, .stream = 2};
  TESSERA_ASSIGN_OR_RETURN(
      auto tied_embedding,
      VocabularyParallelEmbedding::Create(group, kEmbedding));
  TESSERA_ASSIGN_OR_RETURN(
      auto tied_head,
      OutputHead::Create(group, kOptions, &tied_embedding.table()));
  TESSERA_RETURN_IF_ERROR(
      tied_embedding.table().FillNormal(group.ops(), key, 1));
  TESSERA_RETURN_IF_ERROR(RunModel(tied_embedding, tied_head, tokens, pool));

  TESSERA_ASSIGN_OR_RETURN(
      auto embedding, VocabularyParallelEmbedding::Create(group, kEmbedding));
  TESSERA_ASSIGN_OR_RETURN(auto head, OutputHead::Create(group, kOptions));
  TESSERA_RETURN_IF_ERROR(embedding.table().FillNormal(group.ops(), key, 1));
  TESSERA_RETURN_IF_ERROR(head.table().FillNormal(group.ops(), key, 1));
  TESSERA_RETURN_IF_ERROR(RunModel(embedding, head, tokens, pool));
  // As a trainer does for tied tables on different stages.
  if (embedding.table().rows() != head.table().rows()) {
    return absl::InternalError("the tables have other rows");
  }
  TESSERA_RETURN_IF_ERROR(group.ops().Run(
      op::Add{head.table().gradient(), embedding.table().gradient()}));
  return ExpectNearPart(
      "the gradient of the table", tied_embedding.table().gradient(),
      embedding.table().gradient(), embedding.table().gradient(), 1e-14);
}

TEST(OutputHeadTest, TiedToTheEmbeddingBothAddToOneGradient) {
  for (const int64_t ranks : {1, 2, 3}) {
    EXPECT_THAT(RunMesh({.tp = ranks},
                        [&](const TensorGroup& tensor, const TensorGroup&) {
                          return CheckTied(tensor);
                        }),
                Each(IsOk()));
  }
}

TEST(OutputHeadTest, TablesThatDoNotFitAreNotTied) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  EmbeddingOptions other = kEmbedding;
  other.vocabulary = kVocabulary + 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto embedding, VocabularyParallelEmbedding::Create(group, other));
  EXPECT_THAT(
      OutputHead::Create(group, kOptions, &embedding.table()).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("rows 0 to 12 of 12 x 6 f64; it should be rows 0 to "
                         "11 of 11 x 6 f64")));
}

TEST(OutputHeadTest, NamesItsParametersAndNotSomebodyElses) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto embedding, VocabularyParallelEmbedding::Create(group, kEmbedding));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto head, OutputHead::Create(group, kOptions));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto tied, OutputHead::Create(group, kOptions, &embedding.table()));
  std::vector<Parameter*> own, shared;
  embedding.AppendParameters("embedding", shared);
  tied.AppendParameters("", shared);
  head.AppendParameters("head", own);
  const auto names = [](const std::vector<Parameter*>& parameters) {
    std::vector<std::string> result;
    for (Parameter* p : parameters) result.push_back(p->name());
    return result;
  };
  EXPECT_THAT(names(own),
              ElementsAre("head.norm.weight", "head.output.weight"));
  EXPECT_THAT(names(shared), ElementsAre("embedding.weight", "norm.weight"));
}

TEST(OutputHeadTest, HoldsTheInputAloneWhereAllIsComputedAgain) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Tensor x, RandomTensor(DType::kF64, {{kTokens, kWidth}}, 1));
  std::vector<double> losses(kTokens);
  const std::vector<int64_t> targets = Words(kTokens, 2);
  const int64_t input = kTokens * kWidth * 8, by_token = kTokens * 8;
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    OutputHeadOptions options = kOptions;
    options.recompute = recompute;
    TESSERA_ASSERT_OK_AND_ASSIGN(auto head, OutputHead::Create(group, options));
    TensorPool pool(HostMemory());
    HeadActivations activations(pool);
    TESSERA_ASSERT_OK(head.Forward(*Partition::Balanced(kTokens, 1), x.view(),
                                   ListOf(targets), ListOf(losses),
                                   activations));
    // Includes the statistics of the loss.
    EXPECT_EQ(activations.bytes(),
              recompute == Recompute::kFull
                  ? input + 3 * by_token
                  : 2 * input + 4 * by_token + kTokens * kVocabulary * 8);
    EXPECT_GE(pool.taken_bytes(), activations.bytes());
    int64_t kept = 0;
    for (const KeptTensor& tensor : activations.Kept()) {
      if (tensor.value().has_value()) kept += tensor.value()->size_in_bytes();
    }
    EXPECT_EQ(kept, activations.bytes());
    activations.Clear();
    EXPECT_EQ(pool.taken_bytes(), 0);
  }
}

// O(tokens), not O(tokens x vocabulary).
TEST(OutputHeadTest, MovesNoLogits) {
  std::vector<int64_t> moved(2);
  for (const int64_t vocabulary : {16, 1024}) {
    EXPECT_THAT(
        RunMesh(
            {.tp = 2},
            [&](const TensorGroup& group, const TensorGroup&) -> absl::Status {
              OutputHeadOptions options = kOptions;
              options.vocabulary = vocabulary;
              TESSERA_ASSIGN_OR_RETURN(auto head,
                                       OutputHead::Create(group, options));
              TensorPool pool(HostMemory());
              HeadActivations activations(pool);
              TESSERA_ASSIGN_OR_RETURN(
                  Tensor x, RandomTensor(DType::kF64, {{kTokens, kWidth}}, 1));
              std::vector<double> losses(kTokens);
              const std::vector<int64_t> targets = Words(kTokens, 2);
              TESSERA_RETURN_IF_ERROR(
                  head.Forward(*Partition::Balanced(kTokens, 2), x.view(),
                               ListOf(targets), ListOf(losses), activations));
              TESSERA_RETURN_IF_ERROR(
                  head.Backward(ListOf(losses), x.view(), activations));
              int64_t bytes = 0;
              for (const auto& [what, totals] :
                   group.communicator()->Statistics()) {
                bytes += totals.bytes;
              }
              // Three numbers a token, and the gradient of x.
              return bytes == kTokens * (3 + kWidth) * 8
                         ? absl::OkStatus()
                         : absl::InternalError(absl::StrCat(bytes));
            }),
        Each(IsOk()));
  }
}

TEST(OutputHeadTest, WrongCallsAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto head, OutputHead::Create(group, kOptions));
  TensorPool pool(HostMemory());
  HeadActivations activations(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Tensor x, RandomTensor(DType::kF64, {{kTokens, kWidth}}, 1));
  std::vector<double> losses(kTokens);
  std::vector<double> five(5);
  const std::vector<int64_t> targets = Words(kTokens, 2);
  const std::vector<int64_t> five_targets = Words(5, 2);
  EXPECT_THAT(head.BackwardInput(ListOf(losses), x.view(), activations),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("OutputHead::BackwardInput")));
  EXPECT_THAT(head.Forward(*Partition::Balanced(kTokens, 2), x.view(),
                           ListOf(targets), ListOf(losses), activations),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("among 2 ranks; the group has 1")));
  EXPECT_THAT(head.Forward(*Partition::Balanced(5, 1), x.view(),
                           ListOf(five_targets), ListOf(five), activations),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an output head of 5 tokens")));
  activations.Clear();
  const std::vector<int32_t> wrong(kTokens);
  const Partition tokens = *Partition::Balanced(kTokens, 1);
  EXPECT_THAT(head.Forward(tokens, x.view(), ListOf(wrong), ListOf(losses),
                           activations),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("i32 [8] targets for 8 tokens; give i64")));
  activations.Clear();
  head.table().Release();
  EXPECT_THAT(head.Forward(tokens, x.view(), ListOf(targets), ListOf(losses),
                           activations),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"output.weight\" is released")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
