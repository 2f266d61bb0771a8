// Ring attention gives what a plain loop over the whole sequence gives.
#include "tensor_parallel/context/ring_attention.h"

#include <cmath>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/context/testing/attention_case.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<ContextAttention>> MakeRing(
    const TensorGroup& group, const AttentionCase& c) {
  TESSERA_ASSIGN_OR_RETURN(
      RingAttention attention,
      RingAttention::Create(group, c.layout(), c.options()));
  return std::make_unique<RingAttention>(std::move(attention));
}

void ExpectMask(const std::vector<int64_t>& queries,
                const std::vector<int64_t>& keys, bool causal,
                const std::vector<VisiblePart>& parts) {
  for (size_t i = 0; i < queries.size(); ++i) {
    for (size_t j = 0; j < keys.size(); ++j) {
      const auto query = static_cast<int64_t>(i), key = static_cast<int64_t>(j);
      int seen = 0;
      for (const VisiblePart& part : parts) {
        if (query < part.queries.begin || query >= part.queries.end) continue;
        if (key < part.keys.begin || key >= part.keys.end) continue;
        const int64_t last =
            query - part.queries.begin + part.keys.size() - part.queries.size();
        seen += part.kind == BlockKind::kFull || key - part.keys.begin <= last;
      }
      ASSERT_EQ(seen, !causal || keys[j] <= queries[i]) << i << " " << j;
    }
  }
}

class RingAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(RingAttentionTest, GivesWhatAPlainLoopGives) {
  const AttentionCase c = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const WholeAttention whole,
                               MakeWholeAttention(c));
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckAttention(communicator, c, whole,
                                               MakeRing);
                       }),
              Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(AllCases, RingAttentionTest,
                         ::testing::ValuesIn(AllAttentionCases()));

// The parts cover what a causal mask by positions leaves, once.
TEST(VisiblePartsTest, AreTheMaskOfThePositions) {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    for (int64_t length = 0; length < 25; ++length) {
      for (const SequenceLayout& layout :
           {*SequenceLayout::Contiguous(length, ranks),
            *SequenceLayout::Zigzag(length, ranks)}) {
        for (int64_t q = 0; q < ranks; ++q) {
          for (int64_t k = 0; k < ranks; ++k) {
            for (const bool causal : {false, true}) {
              const auto parts = VisibleParts(layout, q, k, causal);
              EXPECT_LE(parts.size(), 1u);
              ExpectMask(layout.PositionsOf(q), layout.PositionsOf(k), causal,
                         parts);
            }
          }
        }
      }
    }
  }
}

TEST(RingAttentionDifferencesTest, GradientsAreWhatTheForwardSays) {
  for (const int64_t ranks : {1, 3}) {
    const AttentionCase c = {
        .ranks = ranks, .length = 7, .zigzag = true, .head_size = 2};
    EXPECT_THAT(RunRanks(c.ranks,
                         [&](Communicator& communicator) {
                           return CheckDifferences(communicator, c, MakeRing);
                         }),
                Each(IsOk()));
  }
}

TEST(RingAttentionRefusalTest, NamesWhatIsWrong) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const SequenceLayout layout = *SequenceLayout::Contiguous(4, 1);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(RingAttention::Create(group, *SequenceLayout::Zigzag(4, 2),
                                    {.head_size = 2})
                  .status(),
              StatusIs(kInvalid, HasSubstr("for 2 ranks; the group has 1")));
  EXPECT_THAT(RingAttention::Create(group, layout,
                                    {.heads = 3, .kv_heads = 2, .head_size = 2})
                  .status(),
              StatusIs(kInvalid, HasSubstr("divides the heads")));
  EXPECT_THAT(RingAttention::Create(group, layout,
                                    {.head_size = 2, .dtype = DType::kI8})
                  .status(),
              StatusIs(kInvalid, HasSubstr("f64, f32, bf16 and f16")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto attention, RingAttention::Create(group, layout, {.head_size = 2}));
  EXPECT_DOUBLE_EQ(*attention.options().scale, std::sqrt(0.5));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor good,
                               RandomTensor(DType::kF32, {{1, 4, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor bad,
                               RandomTensor(DType::kF32, {{1, 3, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor lse,
                               RandomTensor(DType::kF32, {{1, 4, 1}}, 1));
  const ContextAttention::Inputs inputs = {good.view(), good.view(),
                                           good.view()};
  EXPECT_THAT(attention.Forward({good.view(), bad.view(), good.view()},
                                good.view(), lse.view()),
              StatusIs(kInvalid,
                       HasSubstr("key is f32 of 1 x 3 x 1 x 2; it should be "
                                 "f32 of 1 x 4 x 1 x 2 (sequences, positions, "
                                 "heads, head size)")));
  EXPECT_THAT(
      attention.Forward(inputs, good.view(), good.view()),
      StatusIs(kInvalid, HasSubstr("log-sum-exp is f32 of 1 x 4 x 1 x 2; it "
                                   "should be f32 of 1 x 4 x 1 (sequences, "
                                   "positions, heads)")));
  EXPECT_THAT(attention.Backward(inputs, good.view(), lse.view(), bad.view(),
                                 {good.view(), good.view(), good.view()}),
              StatusIs(kInvalid, HasSubstr("output gradient")));
  EXPECT_THAT(attention.Backward(inputs, good.view(), lse.view(), good.view(),
                                 {good.view(), good.view(), bad.view()}),
              StatusIs(kInvalid, HasSubstr("value gradient")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
