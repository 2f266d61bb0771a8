// All-to-all attention gives the results of a plain loop over the whole
// sequence and moves the bytes of its formula.
#include "tensor_parallel/context/ulysses_attention.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<std::unique_ptr<ContextAttention>> MakeUlysses(
    const TensorGroup& group, const AttentionCase& c) {
  TESSERA_ASSIGN_OR_RETURN(
      UlyssesAttention attention,
      UlyssesAttention::Create(group, c.layout(), c.options()));
  return std::make_unique<UlyssesAttention>(std::move(attention));
}

// The common cases, plus: as many kv heads as heads, one kv head, more or fewer
// than ranks, and numbers of heads that no number of ranks divides.
std::vector<AttentionCase> AllUlyssesCases() {
  std::vector<AttentionCase> cases = AllAttentionCases();
  struct Heads {
    int64_t heads, kv_heads;
  };
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const Heads heads : {Heads{1, 1},
                              {5, 5},
                              {7, 1},
                              {8, 8},
                              {10, 5},
                              {12, 4},
                              {15, 3},
                              {16, 2}}) {
      AttentionCase c = {.ranks = ranks,
                         .length = 19,
                         .zigzag = true,
                         .dtype = DType::kF64,
                         .heads = heads.heads,
                         .kv_heads = heads.kv_heads};
      cases.push_back(c);
      if (heads.heads != 12 && heads.heads != 16) continue;
      // Gradients of shared kv heads are summed in a wider type than bf16.
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        c.dtype = dtype;
        cases.push_back(c);
      }
    }
  }
  for (const int64_t ranks : {1, 3}) {
    for (const DType dtype : {DType::kF64, DType::kBF16}) {
      cases.push_back({.ranks = ranks,
                       .length = 19,
                       .zigzag = true,
                       .dtype = dtype,
                       .heads = 10,
                       .kv_heads = 5,
                       .sequences = 3});
    }
  }
  return cases;
}

class UlyssesAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(UlyssesAttentionTest, GivesWhatAPlainLoopGives) {
  const AttentionCase c = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const WholeAttention whole,
                               MakeWholeAttention(c));
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckAttention(communicator, c, whole,
                                               MakeUlysses);
                       }),
              Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(AllCases, UlyssesAttentionTest,
                         ::testing::ValuesIn(AllUlyssesCases()));

// 6 heads, 3 per kv head, on 4 ranks: the last two share one kv head.
TEST(UlyssesDifferencesTest, GradientsAreWhatTheForwardSays) {
  for (const int64_t ranks : {1, 4}) {
    const AttentionCase c = {.ranks = ranks,
                             .length = 5,
                             .zigzag = true,
                             .heads = 6,
                             .kv_heads = 3,
                             .head_size = 2};
    EXPECT_THAT(RunRanks(c.ranks,
                         [&](Communicator& communicator) {
                           return CheckDifferences(communicator, c,
                                                   MakeUlysses);
                         }),
                Each(IsOk()));
  }
}

int64_t BytesMoved(const Communicator& communicator) {
  int64_t bytes = 0;
  for (const auto& [key, totals] : communicator.Statistics()) {
    if (key.first == collectives::OpKind::kAllToAll) bytes += totals.bytes;
  }
  return bytes;
}

int64_t CallsMade(const Communicator& communicator) {
  int64_t calls = 0;
  for (const auto& [key, totals] : communicator.Statistics()) {
    calls += totals.count;
  }
  return calls;
}

// The header's formula without padding; these sizes need none.
absl::Status CheckBytes(Communicator& communicator, const AttentionCase& c) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops, &communicator);
  TESSERA_ASSIGN_OR_RETURN(
      auto attention, UlyssesAttention::Create(group, c.layout(), c.options()));
  const HeadPartition& heads = attention.heads();
  const int64_t P = c.layout().SizeOf(group.rank());
  const int64_t e = SizeInBytes(c.dtype);
  const int64_t s = c.dtype == DType::kF64 ? 8 : 4;
  const int64_t d = c.head_size, H = c.heads;
  int64_t needed = 0;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    needed += heads.KvHeadsOf(rank).size();
  }
  const int64_t own = heads.HeadsOf(group.rank()).size();
  const int64_t own_kv = heads.KvHeadsOf(group.rank()).size();
  const int64_t g = heads.shares_kv_heads() ? s : e;

  const int64_t wide[] = {1, P, H, d}, narrow[] = {1, P, c.kv_heads, d};
  TESSERA_ASSIGN_OR_RETURN(Tensor q, RandomTensor(c.dtype, wide, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor k, RandomTensor(c.dtype, narrow, 2));
  TESSERA_ASSIGN_OR_RETURN(Tensor output, RandomTensor(c.dtype, wide, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor dq, RandomTensor(c.dtype, wide, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor dk, RandomTensor(c.dtype, narrow, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor dv, RandomTensor(c.dtype, narrow, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor lse,
                           RandomTensor(s == 8 ? DType::kF64 : DType::kF32,
                                        std::span(wide).first(3), 4));
  const ContextAttention::Inputs inputs = {q.view(), k.view(), k.view()};
  TESSERA_RETURN_IF_ERROR(attention.Forward(inputs, output.view(), lse.view()));
  const int64_t forward =
      P * (H + 2 * needed) * d * e + c.length * own * (d * e + s);
  const int64_t moved = BytesMoved(communicator);
  TESSERA_RETURN_IF_ERROR(
      attention.Backward(inputs, output.view(), lse.view(), output.view(),
                         {dq.view(), dk.view(), dv.view()}));
  const int64_t backward = P * ((3 * H + 2 * needed) * d * e + H * s) +
                           c.length * (own * d * e + 2 * own_kv * d * g);
  const int64_t moved_back = BytesMoved(communicator) - moved;
  if (moved == forward && moved_back == backward &&
      CallsMade(communicator) == 4) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("moved ", moved, " and ", moved_back,
                                          " bytes in ", CallsMade(communicator),
                                          " calls; should be ", forward,
                                          " and ", backward, " in 4"));
}

TEST(UlyssesTrafficTest, MovesTheBytesOfTheFormula) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t ranks : {2, 3, 4, 8}) {
      for (const int64_t kv_heads : {1, 2, 8}) {
        const AttentionCase c = {.ranks = ranks,
                                 .length = 48,
                                 .dtype = dtype,
                                 .heads = 8,
                                 .kv_heads = kv_heads,
                                 .head_size = 4};
        EXPECT_THAT(RunRanks(ranks,
                             [&](Communicator& communicator) {
                               return CheckBytes(communicator, c);
                             }),
                    Each(IsOk()))
            << c;
      }
    }
  }
}

TEST(UlyssesAttentionRefusalTest, NamesWhatIsWrong) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const SequenceLayout layout = *SequenceLayout::Contiguous(4, 1);
  EXPECT_THAT(UlyssesAttention::Create(group, *SequenceLayout::Zigzag(4, 2),
                                       {.head_size = 2})
                  .status(),
              StatusIs(kInvalid, HasSubstr("for 2 ranks; the group has 1")));
  EXPECT_THAT(UlyssesAttention::Create(
                  group, layout, {.heads = 3, .kv_heads = 2, .head_size = 2})
                  .status(),
              StatusIs(kInvalid, HasSubstr("divides the heads")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto attention,
      UlyssesAttention::Create(group, layout, {.head_size = 2}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor good,
                               RandomTensor(DType::kF32, {{1, 4, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor bad,
                               RandomTensor(DType::kF64, {{1, 4, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor lse,
                               RandomTensor(DType::kF32, {{1, 4, 1}}, 1));
  EXPECT_THAT(attention.Forward({good.view(), good.view(), bad.view()},
                                good.view(), lse.view()),
              StatusIs(kInvalid, HasSubstr("value is f64")));
  EXPECT_THAT(attention.Backward({good.view(), good.view(), good.view()},
                                 good.view(), lse.view(), good.view(),
                                 {bad.view(), good.view(), good.view()}),
              StatusIs(kInvalid, HasSubstr("query gradient is f64")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
