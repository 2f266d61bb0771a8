// Bits that CpuOps promises beyond ops/ops.h: the same on every instruction
// set, with any number of threads, and however rows are shared among calls.
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/ops_cpu/testing/instruction_sets.h"

namespace tessera::tensor_parallel {
namespace {

class CpuOpsBits : public ::testing::Test {
 protected:
  CpuOps ops_{{.threads = 1}};
};

struct Activation {
  Activation(GluKind kind, DType dtype, int64_t rows, int64_t n,
             std::mt19937_64& random)
      : kind(kind),
        gate(dtype, {rows, n}, 2),
        up(dtype, {rows, n}, 3),
        y(dtype, {rows, n}, 1),
        gradient(dtype, {rows, n}, 5),
        gate_gradient(dtype, {rows, n}, 4),
        up_gradient(dtype, {rows, n}, 1) {
    gate.Randomise(random, 3);
    up.Randomise(random);
    gradient.Randomise(random);
  }
  absl::Status Forward(Ops& ops) {
    return ops.Run(op::Glu{kind, gate.view(), up.view(), y.view()});
  }
  absl::Status Backward(Ops& ops) {
    return ops.Run(op::GluGradient{kind, gradient.view(), gate.view(),
                                   up.view(), gate_gradient.view(),
                                   up_gradient.view()});
  }

  GluKind kind;
  TestTensor gate, up, y, gradient, gate_gradient, up_gradient;
};

TEST_F(CpuOpsBits, OfGluAreThoseOfEveryInstructionSet) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    for (const GluKind kind :
         {GluKind::kSwiGlu, GluKind::kGeGlu, GluKind::kClampedGlu}) {
      Activation p(kind, dtype, 4, 77, random);
      std::vector<double> y, gate;
      cpu::ForEachInstructionSet([&] {
        TESSERA_ASSERT_OK(p.Forward(ops_));
        TESSERA_ASSERT_OK(p.Backward(ops_));
        if (y.empty()) y = p.y.values(), gate = p.gate_gradient.values();
        EXPECT_EQ(p.y.values(), y);
        EXPECT_EQ(p.gate_gradient.values(), gate);
      });
    }
  }
}

TEST_F(CpuOpsBits, OfARowOfGluAreThoseOfTheBatch) {
  std::mt19937_64 random(5);
  Activation p(GluKind::kGeGlu, DType::kF32, 5, 37, random);
  TESSERA_ASSERT_OK(p.Forward(ops_));
  TestTensor row(DType::kF32, {1, 37});
  for (int64_t i = 0; i < 5; ++i) {
    TESSERA_ASSERT_OK(
        ops_.Run(op::Glu{p.kind, *p.gate.view().Narrow(0, i, 1),
                         *p.up.view().Narrow(0, i, 1), row.view()}));
    for (int64_t j = 0; j < 37; ++j) EXPECT_EQ(row.at(j), p.y.at(i * 37 + j));
  }
}

struct Entropy {
  Entropy(DType dtype, int64_t rows, int64_t n, std::mt19937_64& random)
      : logits(dtype, {rows, n}, 3),
        largest(StatisticsFor(dtype), {rows}),
        sum(StatisticsFor(dtype), {rows}),
        targets(DType::kI64, {rows}),
        scales(DType::kF64, {rows}) {
    logits.Randomise(random, 4);
    for (int64_t i = 0; i < rows; ++i) {
      targets.set(i, static_cast<double>(random() % (n + 2)) - 1);
      scales.set(i, i % 4 == 3 ? 0 : 0.25 * static_cast<double>(i + 1));
    }
  }
  absl::Status Run(Ops& ops) {
    absl::Status status = ops.Run(op::RowMax{logits.view(), largest.view()});
    status.Update(
        ops.Run(op::SumExp{logits.view(), largest.view(), sum.view()}));
    status.Update(
        ops.Run(op::CrossEntropyGradient{largest.view(),
                                         sum.view(),
                                         {0, logits.shape()[1]},
                                         targets.view(),
                                         scales.view(),
                                         {.label_smoothing = 0.1,
                                          .z_loss = 1e-3,
                                          .vocabulary = logits.shape()[1]},
                                         logits.view()}));
    return status;
  }

  TestTensor logits, largest, sum, targets, scales;
};

TEST_F(CpuOpsBits, OfCrossEntropyAreThoseOfEveryInstructionSetAndRowAlone) {
  std::mt19937_64 random(5);
  for (const DType dtype : kComputedTypes) {
    const Entropy original(dtype, 5, 67, random);
    std::vector<double> sums, gradients;
    cpu::ForEachInstructionSet([&] {
      Entropy p = original;
      TESSERA_ASSERT_OK(p.Run(ops_));
      if (sums.empty()) sums = p.sum.values(), gradients = p.logits.values();
      EXPECT_EQ(p.sum.values(), sums);
      EXPECT_EQ(p.logits.values(), gradients);
    });
    TestTensor largest(StatisticsFor(dtype), {1});
    TestTensor sum(StatisticsFor(dtype), {1});
    for (int64_t i = 0; i < 5; ++i) {
      const ConstTensorView row = *original.logits.view().Narrow(0, i, 1);
      TESSERA_ASSERT_OK(ops_.Run(op::RowMax{row, largest.view()}));
      TESSERA_ASSERT_OK(ops_.Run(op::SumExp{row, largest.view(), sum.view()}));
      EXPECT_EQ(sum.at(0), sums[i]);
    }
  }
}

struct Norm {
  Norm(DType dtype, int64_t rows, int64_t n, std::mt19937_64& random)
      : x(dtype, {rows, n}, 3),
        weight(dtype, {n}),
        y(dtype, {rows, n}, 2),
        gradient(dtype, {rows, n}, 1),
        x_gradient(dtype, {rows, n}, 4),
        weight_gradient(StatisticsFor(dtype), {n}),
        inverse(StatisticsFor(dtype), {rows}) {
    x.Randomise(random);
    weight.Randomise(random);
    gradient.Randomise(random);
  }
  // Adds to the gradient of the weight.
  absl::Status Run(Ops& ops, const TestTensor& target) {
    absl::Status status = ops.Run(
        op::RmsNorm{1e-3, x.view(), weight.view(), y.view(), inverse.view()});
    status.Update(ops.Run(
        op::RmsNormInputGradient{gradient.view(), x.view(), weight.view(),
                                 inverse.view(), x_gradient.view()}));
    status.Update(ops.Run(op::RmsNormWeightGradient{
        gradient.view(), x.view(), inverse.view(), target.view()}));
    return status;
  }

  TestTensor x, weight, y, gradient, x_gradient, weight_gradient, inverse;
};

TEST_F(CpuOpsBits, OfNormsAreThoseOfEveryInstructionSet) {
  std::mt19937_64 random(3);
  for (const DType dtype : kComputedTypes) {
    Norm norm(dtype, 4, 133, random);
    std::vector<std::vector<double>> first;
    cpu::ForEachInstructionSet([&] {
      norm.weight_gradient.Set(std::vector<double>(133, 0));
      TESSERA_ASSERT_OK(norm.Run(ops_, norm.weight_gradient));
      const std::vector<std::vector<double>> now = {
          norm.y.values(), norm.x_gradient.values(),
          norm.weight_gradient.values(), norm.inverse.values()};
      if (first.empty()) first = now;
      EXPECT_EQ(now, first);
    });
  }
}

TEST_F(CpuOpsBits, OfARowOfNormsAreThoseOfTheBatch) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    Norm batch(dtype, 6, 77, random);
    TESSERA_ASSERT_OK(batch.Run(ops_, batch.weight_gradient));
    TestTensor weight_gradient(batch.weight_gradient.dtype(), {77});
    for (int64_t i = 0; i < 6; ++i) {
      Norm alone(dtype, 1, 77, random);
      alone.weight = batch.weight;
      for (int64_t j = 0; j < 77; ++j) {
        alone.x.set(j, batch.x.at(i * 77 + j));
        alone.gradient.set(j, batch.gradient.at(i * 77 + j));
      }
      TESSERA_ASSERT_OK(alone.Run(ops_, weight_gradient));
      for (int64_t j = 0; j < 77; ++j) {
        EXPECT_EQ(alone.y.at(j), batch.y.at(i * 77 + j));
        EXPECT_EQ(alone.x_gradient.at(j), batch.x_gradient.at(i * 77 + j));
      }
    }
    EXPECT_EQ(weight_gradient.values(), batch.weight_gradient.values());
  }
}

TEST_F(CpuOpsBits, OfSumRowsAreThoseOfItsParts) {
  std::mt19937_64 random(3);
  TestTensor x(DType::kF32, {23, 77}, 1);
  x.Randomise(random);
  TestTensor once(DType::kF32, {77}), parts(DType::kF32, {77});
  TESSERA_ASSERT_OK(ops_.Run(op::SumRows{x.view(), once.view()}));
  for (const auto& [begin, size] : {std::pair{0, 1}, std::pair{1, 9},
                                    std::pair{10, 0}, std::pair{10, 13}}) {
    TESSERA_ASSERT_OK(
        ops_.Run(op::SumRows{*x.view().Narrow(0, begin, size), parts.view()}));
  }
  EXPECT_EQ(parts.values(), once.values());
}

TEST_F(CpuOpsBits, OfAddRowsAreThoseOfTheOrderOfIds) {
  std::mt19937_64 random(3);
  TestTensor gradient(DType::kF32, {40, 19});
  gradient.Randomise(random);
  std::vector<int64_t> ids(40);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % 7) - 2;
  TestTensor once(DType::kF32, {3, 19}), parts(DType::kF32, {3, 19});
  TESSERA_ASSERT_OK(
      ops_.Run(op::AddRows{gradient.view(), {0, 3}, ListOf(ids), once.view()}));
  for (int64_t i = 0; i < 40; ++i) {
    TESSERA_ASSERT_OK(ops_.Run(op::AddRows{*gradient.view().Narrow(0, i, 1),
                                           {0, 3},
                                           ListOf(std::span(ids).subspan(i, 1)),
                                           parts.view()}));
  }
  EXPECT_EQ(parts.values(), once.values());
}

// Operands of all operations that threads divide, large enough for several
// parts of each.
struct Everything {
  Everything(DType dtype, std::mt19937_64& random)
      : type(dtype),
        x(dtype, {kRows, kWidth}, 3),
        residual(dtype, {kRows, kWidth}),
        weight(dtype, {kWidth}),
        y(dtype, {kRows, kWidth}),
        inverse(StatisticsFor(dtype), {kRows}),
        sums(StatisticsFor(dtype), {kWidth}),
        matrix(dtype, {kOut, kWidth}, 5),
        product(dtype, {kRows, kOut}),
        weight_gradient(StatisticsFor(dtype), {kOut, kWidth}),
        query(dtype, {2, 150, 6, 40}),
        key(dtype, {2, 150, 2, 40}),
        output(StatisticsFor(dtype), {2, 150, 6, 40}),
        log_sum_exp(StatisticsFor(dtype), {2, 150, 6}),
        delta(StatisticsFor(dtype), {2, 150, 6}),
        query_gradient(StatisticsFor(dtype), {2, 150, 6, 40}),
        key_gradient(StatisticsFor(dtype), {2, 150, 2, 40}),
        value_gradient(StatisticsFor(dtype), {2, 150, 2, 40}),
        ids(DType::kI64, {kRows}),
        table(StatisticsFor(dtype), {50, kWidth}),
        logits(StatisticsFor(dtype), {kRows, kExperts}),
        bias(StatisticsFor(dtype), {kExperts}),
        shares(StatisticsFor(dtype), {kRows, 3}),
        experts(DType::kI64, {kRows, 3}),
        loads(DType::kI64, {2, kExperts}),
        slots(DType::kI64, {kRows * 3}),
        tokens(DType::kI64, {kRows * 3}),
        logits_gradient(StatisticsFor(dtype), {kRows, kExperts}),
        scales(StatisticsFor(dtype), {kRows}),
        scales_gradient(StatisticsFor(dtype), {kRows}),
        scaled(dtype, {kRows, kWidth}) {
    for (TestTensor* tensor : {&x, &residual, &weight, &matrix, &query, &key,
                               &sums, &logits, &bias, &scales}) {
      tensor->Randomise(random);
    }
    for (int64_t i = 0; i < kRows; ++i) {
      ids.set(i, static_cast<double>(random() % 60));
    }
  }

  absl::Status Run(Ops& ops) {
    absl::Status status =
        ops.Run(op::AddRmsNorm{1e-5, residual.view(), weight.view(), x.view(),
                               y.view(), inverse.view()});
    status.Update(ops.Run(op::RmsNormWeightGradient{
        residual.view(), x.view(), inverse.view(), sums.view()}));
    status.Update(ops.Run(op::SumRows{y.view(), sums.view()}));
    status.Update(ops.Run(op::Gemm{
        {.transpose_b = true}, y.view(), matrix.view(), product.view()}));
    status.Update(ops.Run(op::Gemm{{.transpose_a = true, .beta = 1},
                                   product.view(),
                                   y.view(),
                                   weight_gradient.view()}));
    status.Update(
        ops.Run(op::Gemm{{}, product.view(), matrix.view(), y.view()}));
    status.Update(
        ops.Run(op::AddRows{y.view(), {0, 50}, ids.view(), table.view()}));
    status.Update(ops.Run(op::Fill{-std::numeric_limits<double>::infinity(),
                                   log_sum_exp.view()}));
    const AttentionBlock block = {.query = query.view(),
                                  .key = key.view(),
                                  .value = key.view(),
                                  .scale = 0.2};
    status.Update(
        ops.Run(op::Attend{block, {output.view(), log_sum_exp.view()}}));
    status.Update(
        ops.Run(op::RowDots{output.view(), query.view(), delta.view()}));
    status.Update(
        ops.Run(op::AttendGradient{block,
                                   {.output_gradient = query.view(),
                                    .output = output.view(),
                                    .log_sum_exp = log_sum_exp.view(),
                                    .delta = delta.view(),
                                    .query_gradient = query_gradient.view(),
                                    .key_gradient = key_gradient.view(),
                                    .value_gradient = value_gradient.view()}}));
    const RouterOptions router = {.score = RouterScore::kSigmoid,
                                  .per_token = 3};
    status.Update(ops.Run(op::Route{router, logits.view(), bias.view(),
                                    shares.view(), experts.view()}));
    status.Update(ops.Run(op::GroupByExpert{
        -1, false, experts.view(), loads.view(), slots.view(), tokens.view()}));
    status.Update(ops.Run(
        op::RouteGradient{router, logits.view(), experts.view(), shares.view(),
                          loads.view(), 0.3, 0.1, logits_gradient.view()}));
    status.Update(
        ops.Run(op::ScaleRows{scales.view(), x.view(), scaled.view()}));
    status.Update(
        ops.Run(op::ScaleRowsGradient{scaled.view(), scales.view(), y.view(),
                                      scaled.view(), scales_gradient.view()}));
    return status;
  }

  std::vector<std::vector<double>> Results() const {
    std::vector<std::vector<double>> results;
    for (const TestTensor* tensor : {&x,
                                     &y,
                                     &inverse,
                                     &sums,
                                     &product,
                                     &weight_gradient,
                                     &table,
                                     &output,
                                     &log_sum_exp,
                                     &delta,
                                     &query_gradient,
                                     &key_gradient,
                                     &value_gradient,
                                     &shares,
                                     &experts,
                                     &loads,
                                     &slots,
                                     &tokens,
                                     &logits_gradient,
                                     &scaled,
                                     &scales_gradient}) {
      results.push_back(tensor->values());
    }
    return results;
  }

  static constexpr int64_t kRows = 300, kWidth = 520, kOut = 1100;
  static constexpr int64_t kExperts = 37;
  DType type;
  TestTensor x, residual, weight, y, inverse, sums;
  TestTensor matrix, product, weight_gradient;
  TestTensor query, key, output, log_sum_exp, delta;
  TestTensor query_gradient, key_gradient, value_gradient;
  TestTensor ids, table;
  TestTensor logits, bias, shares, experts, loads, slots, tokens;
  TestTensor logits_gradient;
  TestTensor scales, scales_gradient, scaled;
};

TEST_F(CpuOpsBits, DoNotDependOnTheNumberOfThreads) {
  std::mt19937_64 random(8);
  for (const DType dtype : kComputedTypes) {
    const Everything original(dtype, random);
    Everything alone = original;
    TESSERA_ASSERT_OK(alone.Run(ops_));
    for (const int threads : {2, 3, 7}) {
      CpuOps ops({.threads = threads});
      Everything together = original;
      TESSERA_ASSERT_OK(together.Run(ops));
      EXPECT_EQ(together.Results(), alone.Results())
          << threads << " threads, " << dtype;
    }
  }
}

TEST_F(CpuOpsBits, OfWholeAttentionAreThoseOfRoundedStates) {
  std::mt19937_64 random(9);
  for (const DType dtype : kComputedTypes) {
    Everything x(dtype, random);
    const auto rounded = [&](TestTensor& from) {
      TestTensor to(dtype, from.shape());
      const bool is_rounded = dtype != from.dtype();
      TESSERA_EXPECT_OK(is_rounded
                            ? ops_.Run(op::Cast{from.view(), to.view()})
                            : ops_.Run(op::Copy{from.view(), to.view()}));
      return to;
    };
    TestTensor output(dtype, x.output.shape()),
        log_sum_exp(x.log_sum_exp.dtype(), x.log_sum_exp.shape()),
        query_gradient(dtype, x.query.shape(), 5),
        key_gradient(dtype, x.key.shape(), 7),
        value_gradient(dtype, x.key.shape());
    AttentionBlock block = {.query = x.query.view(),
                            .key = x.key.view(),
                            .value = x.key.view(),
                            .scale = 0.2,
                            .is_whole = true};
    TESSERA_ASSERT_OK(
        ops_.Run(op::Attend{block, {output.view(), log_sum_exp.view()}}));
    TESSERA_ASSERT_OK(ops_.Run(
        op::AttendGradient{block,
                           {.output_gradient = x.query.view(),
                            .output = output.view(),
                            .log_sum_exp = log_sum_exp.view(),
                            .delta = std::nullopt,
                            .query_gradient = query_gradient.view(),
                            .key_gradient = key_gradient.view(),
                            .value_gradient = value_gradient.view()}}));

    block.is_whole = false;
    TESSERA_ASSERT_OK(ops_.Run(op::Fill{
        -std::numeric_limits<double>::infinity(), x.log_sum_exp.view()}));
    TESSERA_ASSERT_OK(
        ops_.Run(op::Attend{block, {x.output.view(), x.log_sum_exp.view()}}));
    EXPECT_EQ(output.values(), rounded(x.output).values());
    EXPECT_EQ(log_sum_exp.values(), x.log_sum_exp.values());
    x.output.Set(output.values());
    TESSERA_ASSERT_OK(
        ops_.Run(op::RowDots{x.output.view(), x.query.view(), x.delta.view()}));
    TESSERA_ASSERT_OK(ops_.Run(
        op::AttendGradient{block,
                           {.output_gradient = x.query.view(),
                            .output = x.output.view(),
                            .log_sum_exp = x.log_sum_exp.view(),
                            .delta = x.delta.view(),
                            .query_gradient = x.query_gradient.view(),
                            .key_gradient = x.key_gradient.view(),
                            .value_gradient = x.value_gradient.view()}}));
    EXPECT_EQ(query_gradient.values(), rounded(x.query_gradient).values());
    EXPECT_EQ(key_gradient.values(), rounded(x.key_gradient).values());
    EXPECT_EQ(value_gradient.values(), rounded(x.value_gradient).values());
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
