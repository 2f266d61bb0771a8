// Column- and row-parallel layers match one rank, and one rank matches a plain
// loop.
#include "tensor_parallel/layers/linear.h"

#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/copy.h"
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

constexpr RandomKey kWeights = {.seed = 7, .stream = 3};

// Everything that a layer computes from x and the gradient of y; the same on
// every rank.
struct Results {
  Tensor y;
  Tensor x_gradient;
  Tensor weight_gradient;
  Tensor bias_gradient;
};

absl::StatusOr<Tensor> CopyOf(ConstTensorView x) {
  const IndexRange all = {0, x.shape()[0]};
  return Take(x, 0, std::span(&all, 1));
}

std::vector<IndexRange> MyTokens(const LayerCase& c, const Partition& tokens,
                                 int64_t rank) {
  return {c.sequence_parallel ? tokens.RangeOf(rank)
                              : IndexRange{0, tokens.size()}};
}

// Runs `layer` on its parts of x and of the gradient of y; `apart` runs the two
// halves of the backward one by one.
template <typename Layer>
absl::StatusOr<Results> RunLayer(Ops& ops, Layer& layer,
                                 const Partition& tokens, ConstTensorView x,
                                 ConstTensorView y_gradient, bool apart) {
  LinearWeights& weights = layer.weights();
  TESSERA_RETURN_IF_ERROR(weights.FillNormal(ops, kWeights, 0.5));
  TESSERA_RETURN_IF_ERROR(Fill(weights.bias(), 0.25));
  TESSERA_ASSIGN_OR_RETURN(Tensor y, CopyOf(y_gradient));
  TESSERA_ASSIGN_OR_RETURN(Tensor x_gradient, CopyOf(x));
  TESSERA_RETURN_IF_ERROR(layer.Forward(tokens, x, y.view()));
  if (apart) {
    TESSERA_RETURN_IF_ERROR(
        layer.BackwardInput(tokens, y_gradient, x_gradient.view()));
    TESSERA_RETURN_IF_ERROR(layer.BackwardWeight(tokens, y_gradient, x));
  } else {
    TESSERA_RETURN_IF_ERROR(
        layer.Backward(tokens, y_gradient, x, x_gradient.view()));
  }
  TESSERA_RETURN_IF_ERROR(layer.FinishGradients());
  TESSERA_ASSIGN_OR_RETURN(Tensor weight, CopyOf(weights.weight_gradient()));
  TESSERA_ASSIGN_OR_RETURN(Tensor bias, CopyOf(weights.bias_gradient()));
  return Results{std::move(y), std::move(x_gradient), std::move(weight),
                 std::move(bias)};
}

struct Whole {
  Tensor x;
  Tensor y_gradient;
  Results results;
};

// Runs the layer on one rank.
absl::StatusOr<Whole> RunWhole(const LayerCase& c, int64_t in, int64_t out) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSIGN_OR_RETURN(Tensor x,
                           RandomTensor(c.dtype, {{c.tokens, in}}, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                           RandomTensor(c.dtype, {{c.tokens, out}}, 2));
  TESSERA_ASSIGN_OR_RETURN(
      auto layer, ColumnParallelLinear::Create(
                      TensorGroup(ops),
                      {.in = in, .out = out, .bias = true, .dtype = c.dtype}));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(c.tokens, 1));
  TESSERA_ASSIGN_OR_RETURN(
      Results results,
      RunLayer(ops, layer, tokens, x.view(), gradient.view(), /*apart=*/true));
  return Whole{std::move(x), std::move(gradient), std::move(results)};
}

absl::Status Compare(std::string_view what, ConstTensorView actual,
                     ConstTensorView whole, int dim,
                     const std::vector<IndexRange>& ranges, double tolerance) {
  TESSERA_ASSIGN_OR_RETURN(Tensor expected, Take(whole, dim, ranges));
  return ExpectNear(what, actual, expected.view(), tolerance);
}

// Splits gradients of outputs that several ranks hold among these ranks.
absl::Status ShareReplicated(const FusedPartition& partition,
                             const TensorGroup& group, Tensor& gradient) {
  for (size_t part = 0; part < partition.parts().size(); ++part) {
    if (!partition.parts()[part].replicated) continue;
    const IndexRange local =
        partition.LocalRange(static_cast<int64_t>(part), group.rank());
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView shared,
        gradient.view().Narrow(1, local.begin, local.size()));
    const int64_t sharers = group.size() / partition.parts()[part].groups;
    TESSERA_RETURN_IF_ERROR(
        group.ops().Run(op::Scale{1 / static_cast<double>(sharers), shared}));
  }
  return absl::OkStatus();
}

// A way to run a layer: the halves of the backward together or apart, and
// the number of chunks of tokens; 3 is more than some ranks have.
struct Way {
  bool apart = false;
  int64_t chunks = 0;
};

TensorGroup GroupOf(Ops& ops, Communicator& communicator, const LayerCase& c,
                    Way way) {
  return TensorGroup(ops, &communicator)
      .WithSequenceParallel(c.sequence_parallel)
      .WithOverlapChunks(way.chunks);
}

absl::Status CheckColumns(Communicator& communicator, const LayerCase& c,
                          const ColumnParallelOptions& options, Way way) {
  CpuOps ops({.threads = 1});
  const TensorGroup group = GroupOf(ops, communicator, c, way);
  TESSERA_ASSIGN_OR_RETURN(const Whole whole,
                           RunWhole(c, options.in, options.out));
  TESSERA_ASSIGN_OR_RETURN(auto layer,
                           ColumnParallelLinear::Create(group, options));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(c.tokens, c.ranks));
  const auto mine = MyTokens(c, tokens, group.rank());
  const auto outputs = layer.partition().RangesOf(group.rank());
  TESSERA_ASSIGN_OR_RETURN(Tensor x, Take(whole.x.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                           Take(whole.y_gradient.view(), 1, outputs));
  TESSERA_RETURN_IF_ERROR(ShareReplicated(layer.partition(), group, gradient));
  TESSERA_ASSIGN_OR_RETURN(
      const Results got,
      RunLayer(ops, layer, tokens, x.view(), gradient.view(), way.apart));
  const Results& want = whole.results;
  const double t = c.tolerance();
  TESSERA_RETURN_IF_ERROR(
      Compare("y", got.y.view(), want.y.view(), 1, outputs, t));
  TESSERA_RETURN_IF_ERROR(Compare("weight gradient", got.weight_gradient.view(),
                                  want.weight_gradient.view(), 0, outputs, t));
  TESSERA_RETURN_IF_ERROR(Compare("bias gradient", got.bias_gradient.view(),
                                  want.bias_gradient.view(), 0, outputs, t));
  return Compare("x gradient", got.x_gradient.view(), want.x_gradient.view(), 0,
                 mine, t);
}

absl::Status CheckRows(Communicator& communicator, const LayerCase& c,
                       int64_t in, int64_t out, Way way) {
  CpuOps ops({.threads = 1});
  const TensorGroup group = GroupOf(ops, communicator, c, way);
  TESSERA_ASSIGN_OR_RETURN(const Whole whole, RunWhole(c, in, out));
  TESSERA_ASSIGN_OR_RETURN(const Partition inputs,
                           Partition::Balanced(in, c.ranks));
  const IndexRange columns = inputs.RangeOf(group.rank());
  TESSERA_ASSIGN_OR_RETURN(
      auto layer, RowParallelLinear::Create(group, {.in = in,
                                                    .out = out,
                                                    .columns = columns,
                                                    .bias = true,
                                                    .dtype = c.dtype}));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(c.tokens, c.ranks));
  const auto mine = MyTokens(c, tokens, group.rank());
  TESSERA_ASSIGN_OR_RETURN(Tensor x, Take(whole.x.view(), 1, {{columns}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                           Take(whole.y_gradient.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(
      const Results got,
      RunLayer(ops, layer, tokens, x.view(), gradient.view(), way.apart));
  const Results& want = whole.results;
  const double t = c.tolerance();
  TESSERA_RETURN_IF_ERROR(
      Compare("y", got.y.view(), want.y.view(), 0, mine, t));
  TESSERA_RETURN_IF_ERROR(Compare("x gradient", got.x_gradient.view(),
                                  want.x_gradient.view(), 1, {columns}, t));
  TESSERA_RETURN_IF_ERROR(Compare("weight gradient", got.weight_gradient.view(),
                                  want.weight_gradient.view(), 1, {columns},
                                  t));
  return ExpectNear("bias gradient", got.bias_gradient.view(),
                    want.bias_gradient.view(), t);
}

class LinearTest : public ::testing::TestWithParam<LayerCase> {};

constexpr Way kWays[] = {{false, 0}, {true, 1}, {false, 2}, {true, 3}};

// 13 and 10 are not divisible by any of the numbers of ranks.
TEST_P(LinearTest, ColumnsGiveWhatOneRankGives) {
  const LayerCase c = GetParam();
  for (const Way way : kWays) {
    const ColumnParallelOptions options = {
        .in = 13,
        .out = 10,
        .bias = true,
        .dtype = c.dtype,
    };
    EXPECT_THAT(RunRanks(c.ranks,
                         [&](Communicator& communicator) {
                           return CheckColumns(communicator, c, options, way);
                         }),
                Each(IsOk()));
  }
}

TEST_P(LinearTest, RowsGiveWhatOneRankGives) {
  const LayerCase c = GetParam();
  for (const Way way : kWays) {
    EXPECT_THAT(RunRanks(c.ranks,
                         [&](Communicator& communicator) {
                           return CheckRows(communicator, c, 13, 10, way);
                         }),
                Each(IsOk()));
  }
}

// Gate and up projection: each rank has a part of both.
TEST_P(LinearTest, FusedPartsAreCutOneByOne) {
  const LayerCase c = GetParam();
  const ColumnParallelOptions options = {.in = 5,
                                         .out = 22,
                                         .bias = true,
                                         .dtype = c.dtype,
                                         .parts = GatedMlpParts(11)};
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckColumns(communicator, c, options,
                                             {.apart = true});
                       }),
              Each(IsOk()));
}

// 8 query heads of 3 elements and 2 kv heads: from 4 ranks on, several ranks
// hold the same kv heads.
TEST_P(LinearTest, SharedKeyAndValueHeadsGetTheirWholeGradient) {
  const LayerCase c = GetParam();
  if (c.ranks == 3) return;  // 2 heads cannot be split over 3 ranks.
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto parts, QkvParts(8, 2, 3, c.ranks));
  const ColumnParallelOptions options = {
      .in = 6, .out = 36, .bias = true, .dtype = c.dtype, .parts = parts};
  EXPECT_THAT(RunRanks(c.ranks,
                       [&](Communicator& communicator) {
                         return CheckColumns(communicator, c, options, {});
                       }),
              Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(AllCases, LinearTest,
                         ::testing::ValuesIn(AllLayerCases()));

TEST(ColumnParallelLinearTest, OneRankGivesWhatAPlainLoopGives) {
  const LayerCase c = {.tokens = 4};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Whole whole, RunWhole(c, 3, 5));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto x, ValuesOf(whole.x.view()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto dy,
                               ValuesOf(whole.y_gradient.view()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto y, ValuesOf(whole.results.y.view()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto dx,
                               ValuesOf(whole.results.x_gradient.view()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto dw,
                               ValuesOf(whole.results.weight_gradient.view()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto db,
                               ValuesOf(whole.results.bias_gradient.view()));
  const Philox random(kWeights);
  const auto w = [&](size_t o, size_t i) {
    return random.Normal(3 * o + i) / 2;
  };
  for (size_t t = 0; t < 4; ++t) {
    for (size_t o = 0; o < 5; ++o) {
      double sum = 0.25;
      for (size_t i = 0; i < 3; ++i) sum += x[3 * t + i] * w(o, i);
      EXPECT_NEAR(y[5 * t + o], sum, 1e-12);
    }
    for (size_t i = 0; i < 3; ++i) {
      double sum = 0;
      for (size_t o = 0; o < 5; ++o) sum += dy[5 * t + o] * w(o, i);
      EXPECT_NEAR(dx[3 * t + i], sum, 1e-12);
    }
  }
  for (size_t o = 0; o < 5; ++o) {
    double sum = 0;
    for (size_t t = 0; t < 4; ++t) sum += dy[5 * t + o];
    EXPECT_NEAR(db[o], sum, 1e-12);
    for (size_t i = 0; i < 3; ++i) {
      double product = 0;
      for (size_t t = 0; t < 4; ++t) product += dy[5 * t + o] * x[3 * t + i];
      EXPECT_NEAR(dw[3 * o + i], product, 1e-12);
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
