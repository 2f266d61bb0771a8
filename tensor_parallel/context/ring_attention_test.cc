// Ring attention gives what a plain loop over the whole sequence gives.
#include "tensor_parallel/context/ring_attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops/cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kSize = 3;

struct RingCase {
  int64_t ranks = 1;
  int64_t length = 0;
  bool zigzag = false;
  bool causal = true;
  DType dtype = DType::kF64;

  double tolerance() const {
    if (dtype == DType::kF64) return 1e-12;
    return dtype == DType::kF32 ? 1e-5 : 3e-2;
  }
  SequenceLayout layout() const {
    return zigzag ? *SequenceLayout::Zigzag(length, ranks)
                  : *SequenceLayout::Contiguous(length, ranks);
  }
  RingAttentionOptions options() const {
    return {.heads = kHeads,
            .kv_heads = kKvHeads,
            .head_size = kSize,
            .causal = causal,
            .dtype = dtype};
  }
};

std::ostream& operator<<(std::ostream& os, const RingCase& c) {
  return os << c.ranks << " ranks, " << c.length << " positions, "
            << (c.zigzag ? "zigzag" : "contiguous")
            << (c.causal ? ", causal, " : ", ") << DTypeName(c.dtype);
}

std::vector<RingCase> AllRingCases() {
  std::vector<RingCase> cases;
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    // None, fewer than ranks, divisible by none and by all.
    for (const int64_t length : {0, 5, 23, 48}) {
      for (const bool zigzag : {false, true}) {
        cases.push_back({ranks, length, zigzag, true, DType::kF64});
        cases.push_back({ranks, length, zigzag, false, DType::kF64});
        cases.push_back({ranks, length, zigzag, true, DType::kF32});
        cases.push_back({ranks, length, zigzag, true, DType::kBF16});
      }
    }
  }
  return cases;
}

// A whole tensor [length, heads, kSize] as float64, by position.
struct Plain {
  explicit Plain(int64_t length, int64_t heads)
      : heads(heads), values(static_cast<size_t>(length * heads * kSize)) {}
  double& at(int64_t position, int64_t head, int64_t d) {
    return values[static_cast<size_t>((position * heads + head) * kSize + d)];
  }
  int64_t heads;
  std::vector<double> values;
};

struct PlainAttention {
  Plain output;
  Plain query_gradient;
  Plain key_gradient;
  Plain value_gradient;
};

// One head: softmax(q k^T scale) v and its gradients by the definition.
void AddHead(const RingCase& c, int64_t head, Plain q, Plain k, Plain v,
             Plain gradient, PlainAttention& result) {
  const int64_t kv = head / (kHeads / kKvHeads);
  const double scale = 1 / std::sqrt(static_cast<double>(kSize));
  for (int64_t i = 0; i < c.length; ++i) {
    const int64_t seen = c.causal ? i + 1 : c.length;
    std::vector<double> p(static_cast<size_t>(seen));
    double sum = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double product = 0;
      for (int64_t d = 0; d < kSize; ++d) {
        product += q.at(i, head, d) * k.at(j, kv, d);
      }
      sum += p[static_cast<size_t>(j)] = std::exp(product * scale);
    }
    double dot = 0;
    std::vector<double> dp(p.size());
    for (int64_t j = 0; j < seen; ++j) {
      const auto at = static_cast<size_t>(j);
      p[at] /= sum;
      for (int64_t d = 0; d < kSize; ++d) {
        result.output.at(i, head, d) += p[at] * v.at(j, kv, d);
        result.value_gradient.at(j, kv, d) += p[at] * gradient.at(i, head, d);
        dp[at] += v.at(j, kv, d) * gradient.at(i, head, d);
      }
      dot += p[at] * dp[at];
    }
    for (int64_t j = 0; j < seen; ++j) {
      const auto at = static_cast<size_t>(j);
      const double ds = p[at] * (dp[at] - dot) * scale;
      for (int64_t d = 0; d < kSize; ++d) {
        result.query_gradient.at(i, head, d) += ds * k.at(j, kv, d);
        result.key_gradient.at(j, kv, d) += ds * q.at(i, head, d);
      }
    }
  }
}

struct Whole {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor gradient;
  PlainAttention plain;
};

absl::StatusOr<Plain> ToPlain(const RingCase& c, const Tensor& tensor,
                              int64_t heads) {
  Plain plain(c.length, heads);
  TESSERA_ASSIGN_OR_RETURN(plain.values, ValuesOf(tensor.view()));
  return plain;
}

absl::StatusOr<Whole> MakeWhole(const RingCase& c) {
  const int64_t wide[] = {c.length, kHeads, kSize};
  const int64_t narrow[] = {c.length, kKvHeads, kSize};
  TESSERA_ASSIGN_OR_RETURN(Tensor query, RandomTensor(c.dtype, wide, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor key, RandomTensor(c.dtype, narrow, 2));
  TESSERA_ASSIGN_OR_RETURN(Tensor value, RandomTensor(c.dtype, narrow, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient, RandomTensor(c.dtype, wide, 4));
  TESSERA_ASSIGN_OR_RETURN(const Plain q, ToPlain(c, query, kHeads));
  TESSERA_ASSIGN_OR_RETURN(const Plain k, ToPlain(c, key, kKvHeads));
  TESSERA_ASSIGN_OR_RETURN(const Plain v, ToPlain(c, value, kKvHeads));
  TESSERA_ASSIGN_OR_RETURN(const Plain g, ToPlain(c, gradient, kHeads));
  PlainAttention plain = {Plain(c.length, kHeads), Plain(c.length, kHeads),
                          Plain(c.length, kKvHeads), Plain(c.length, kKvHeads)};
  for (int64_t head = 0; head < kHeads; ++head) {
    AddHead(c, head, q, k, v, g, plain);
  }
  return Whole{std::move(query), std::move(key), std::move(value),
               std::move(gradient), std::move(plain)};
}

absl::Status CheckAgainst(const char* what, const RingCase& c,
                          const std::vector<IndexRange>& mine,
                          ConstTensorView got, const Plain& plain) {
  const int64_t shape[] = {c.length, plain.heads, kSize};
  TESSERA_ASSIGN_OR_RETURN(
      const ConstTensorView whole,
      ConstTensorView::Of(std::span<const double>(plain.values), shape));
  TESSERA_ASSIGN_OR_RETURN(Tensor want, Take(whole, 0, mine));
  return ExpectNear(what, got, want.view(), c.tolerance());
}

absl::Status CheckRank(Communicator& communicator, const RingCase& c,
                       const Whole& whole) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops, &communicator);
  TESSERA_ASSIGN_OR_RETURN(
      auto attention, RingAttention::Create(group, c.layout(), c.options()));
  const std::vector<IndexRange> mine = c.layout().RangesOf(group.rank());
  TESSERA_ASSIGN_OR_RETURN(Tensor q, Take(whole.query.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor k, Take(whole.key.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor v, Take(whole.value.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor g, Take(whole.gradient.view(), 0, mine));
  // To be overwritten.
  TESSERA_ASSIGN_OR_RETURN(Tensor output,
                           Take(g.view(), 0, {{{0, q.shape()[0]}}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor dq, Take(g.view(), 0, {{{0, q.shape()[0]}}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor dk, Take(k.view(), 0, {{{0, q.shape()[0]}}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor dv, Take(v.view(), 0, {{{0, q.shape()[0]}}}));
  const int64_t statistics[] = {q.shape()[0], kHeads};
  TESSERA_ASSIGN_OR_RETURN(
      Tensor log_sum_exp,
      Tensor::Create(c.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                     statistics));
  const RingAttention::Inputs inputs = {q.view(), k.view(), v.view()};
  // Twice: nothing of the first may be left in the second.
  for (int i = 0; i < 2; ++i) {
    TESSERA_RETURN_IF_ERROR(
        attention.Forward(inputs, output.view(), log_sum_exp.view()));
    TESSERA_RETURN_IF_ERROR(
        attention.Backward(inputs, output.view(), log_sum_exp.view(), g.view(),
                           {dq.view(), dk.view(), dv.view()}));
  }
  const PlainAttention& plain = whole.plain;
  TESSERA_RETURN_IF_ERROR(
      CheckAgainst("output", c, mine, output.view(), plain.output));
  TESSERA_RETURN_IF_ERROR(
      CheckAgainst("query gradient", c, mine, dq.view(), plain.query_gradient));
  TESSERA_RETURN_IF_ERROR(
      CheckAgainst("key gradient", c, mine, dk.view(), plain.key_gradient));
  return CheckAgainst("value gradient", c, mine, dv.view(),
                      plain.value_gradient);
}

class RingAttentionTest : public ::testing::TestWithParam<RingCase> {};

TEST_P(RingAttentionTest, GivesWhatAPlainLoopGives) {
  const RingCase c = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Whole whole, MakeWhole(c));
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckRank(communicator, c, whole);
                       }),
              Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(AllCases, RingAttentionTest,
                         ::testing::ValuesIn(AllRingCases()));

TEST(RingAttentionRefusalTest, NamesWhatIsWrong) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const SequenceLayout layout = *SequenceLayout::Contiguous(4, 1);
  EXPECT_THAT(RingAttention::Create(group, *SequenceLayout::Zigzag(4, 2),
                                    {.head_size = 2})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("for 2 ranks; the group has 1")));
  EXPECT_THAT(RingAttention::Create(group, layout,
                                    {.heads = 3, .kv_heads = 2, .head_size = 2})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("divides the heads")));
  EXPECT_THAT(RingAttention::Create(group, layout,
                                    {.head_size = 2, .dtype = DType::kI8})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("f64, f32 and bf16")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto attention, RingAttention::Create(group, layout, {.head_size = 2}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor good,
                               RandomTensor(DType::kF32, {{4, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor bad,
                               RandomTensor(DType::kF32, {{3, 1, 2}}, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor lse,
                               RandomTensor(DType::kF32, {{4, 1}}, 1));
  EXPECT_THAT(attention.Forward({good.view(), bad.view(), good.view()},
                                good.view(), lse.view()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("key is f32 of 3 x 1 x 2; it should be f32 of "
                                 "4 x 1 x 2")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
