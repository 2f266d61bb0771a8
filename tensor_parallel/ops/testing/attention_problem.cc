#include "tensor_parallel/ops/testing/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

double Dot(const std::vector<double>& a, int64_t x,
           const std::vector<double>& b, int64_t y, int64_t count) {
  double sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += a[x + j] * b[y + j];
  return sum;
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();
// A factor that covers the products of two rounding errors.
constexpr double kSecondOrder = 1.02;

int64_t GapFor(int64_t d, int64_t gap) { return d % 8 == 0 ? 8 * gap : gap; }

double LateRounding(const AttentionProblem& p, Arithmetic arithmetic) {
  return p.query.dtype() == DType::kBF16 &&
                 arithmetic == Arithmetic::kTensorCores
             ? kBF16Rounding
             : 0;
}

// The factor of the f32 error of a sum over the queries.
double KeyScale(const AttentionProblem& p) {
  return 2 + std::sqrt(static_cast<double>(p.sizes.queries) + 1);
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const AttentionSizes& s) {
  return os << s.sequences << "x" << s.queries << "x" << s.keys << ", "
            << s.heads << "/" << s.kv_heads << " heads of " << s.d;
}

AttentionProblem::AttentionProblem(DType dtype, const AttentionSizes& s,
                                   std::mt19937_64& random, int64_t state_gap)
    : sizes(s),
      query(dtype, {s.sequences, s.queries, s.heads, s.d}, GapFor(s.d, 3)),
      key(dtype, {s.sequences, s.keys, s.kv_heads, s.d}, GapFor(s.d, 2)),
      value(dtype, {s.sequences, s.keys, s.kv_heads, s.d}, GapFor(s.d, 5)),
      output(StatisticsFor(dtype), query.shape(), state_gap),
      log_sum_exp(StatisticsFor(dtype), {s.sequences, s.queries, s.heads},
                  state_gap),
      output_gradient(dtype, query.shape(), GapFor(s.d, 1)),
      delta(StatisticsFor(dtype), log_sum_exp.shape(), state_gap),
      query_gradient(StatisticsFor(dtype), query.shape(), state_gap),
      key_gradient(StatisticsFor(dtype), key.shape(), state_gap),
      value_gradient(StatisticsFor(dtype), key.shape(), state_gap),
      scale(1 / std::sqrt(static_cast<double>(std::max<int64_t>(s.d, 1)))) {
  query.Randomise(random);
  key.Randomise(random);
  value.Randomise(random);
  output_gradient.Randomise(random);
  Reset();
}

void AttentionProblem::Reset() {
  output.Set(std::vector<double>(output.size(), 0));
  log_sum_exp.Set(std::vector<double>(log_sum_exp.size(), kNothing));
}

AttentionBlock AttentionProblem::Block() const {
  AttentionBlock block = {query.view(), key.view(), value.view(), kind, scale};
  block.cap = cap;
  if (!first_keys.empty()) {
    block.first_keys =
        *ConstTensorView::Of(std::span<const int64_t>(first_keys),
                             {{sizes.sequences, sizes.queries}});
  }
  return block;
}

AttentionGradients AttentionProblem::Gradients() const {
  return {output_gradient.view(), output.view(),         log_sum_exp.view(),
          delta.view(),           query_gradient.view(), key_gradient.view(),
          value_gradient.view()};
}

AttentionBlock AttentionProblem::Block(int64_t first, int64_t last,
                                       int64_t begin, int64_t end,
                                       BlockKind part_kind) const {
  return {*query.view().Narrow(1, first, last - first),
          *key.view().Narrow(1, begin, end - begin),
          *value.view().Narrow(1, begin, end - begin), part_kind, scale};
}

AttentionState AttentionProblem::State(int64_t first, int64_t last) const {
  return {*output.view().Narrow(1, first, last - first),
          *log_sum_exp.view().Narrow(1, first, last - first)};
}

AttentionGradients AttentionProblem::Gradients(int64_t first, int64_t last,
                                               int64_t begin,
                                               int64_t end) const {
  const auto queries = [&](const TestTensor& x) {
    return *x.view().Narrow(1, first, last - first);
  };
  const auto keys = [&](const TestTensor& x) {
    return *x.view().Narrow(1, begin, end - begin);
  };
  return {queries(output_gradient), queries(output),
          queries(log_sum_exp),     queries(delta),
          queries(query_gradient),  keys(key_gradient),
          keys(value_gradient)};
}

bool AttentionProblem::Sees(int64_t sequence, int64_t q, int64_t k) const {
  if (!first_keys.empty() && k < first_keys[sequence * sizes.queries + q]) {
    return false;
  }
  if (kind == BlockKind::kCausal) return k <= q + sizes.keys - sizes.queries;
  return kind == BlockKind::kFull;
}

AttentionReference::AttentionReference(const AttentionProblem& p,
                                       Arithmetic arithmetic)
    : output(p.output.size(), 0),
      log_sum_exp(p.log_sum_exp.size(), kNothing),
      delta(p.delta.size(), 0),
      query_gradient(p.query.size(), 0),
      key_gradient(p.key.size(), 0),
      value_gradient(p.value.size(), 0),
      errors{output, query_gradient, key_gradient, value_gradient},
      rounding_(p.query.dtype() == DType::kBF16 ? kBF16Rounding : 0),
      late_rounding_(LateRounding(p, arithmetic)),
      query_(p.query.values()),
      key_(p.key.values()),
      value_(p.value.values()),
      gradient_(p.output_gradient.values()),
      key_of_heads_(
          p.sizes.sequences * p.sizes.keys * p.sizes.heads * p.sizes.d, 0),
      value_of_heads_(key_of_heads_),
      head_errors_{{}, {}, key_of_heads_, value_of_heads_} {
  const AttentionSizes& s = p.sizes;
  for (int64_t i = 0; i < s.sequences * s.queries * s.heads; ++i) AddRow(p, i);
  SumGroups(s);
}

std::vector<double> AttentionReference::SetShares(const AttentionProblem& p,
                                                  int64_t i,
                                                  std::vector<double>& slopes) {
  const AttentionSizes& s = p.sizes;
  const int64_t q = i / s.heads % s.queries;
  const int64_t sequence = i / s.heads / s.queries;
  const int64_t kv_head = i % s.heads / (s.heads / s.kv_heads);
  std::vector<double> scores(s.keys, kNothing);
  double largest = kNothing, sum = 0;
  for (int64_t k = 0; k < s.keys; ++k) {
    if (!p.Sees(sequence, q, k)) continue;
    const int64_t at = ((sequence * s.keys + k) * s.kv_heads + kv_head) * s.d;
    scores[k] = p.scale * Dot(query_, i * s.d, key_, at, s.d);
    if (p.cap > 0) {
      const double part = std::tanh(scores[k] / p.cap);
      scores[k] = p.cap * part;
      slopes[k] *= 1 - part * part;
    }
    largest = std::max(largest, scores[k]);
  }
  if (largest == kNothing) return {};
  for (double score : scores) sum += std::exp(score - largest);
  log_sum_exp[i] = largest + std::log(sum);
  for (double& score : scores) score = std::exp(score - log_sum_exp[i]);
  return scores;
}

void AttentionReference::AddRow(const AttentionProblem& p, int64_t i) {
  const AttentionSizes& s = p.sizes;
  const int64_t d = s.d;
  const int64_t q = i / s.heads % s.queries;
  const int64_t sequence = i / s.heads / s.queries;
  const int64_t head = i % s.heads, kv_head = head / (s.heads / s.kv_heads);
  const auto at = [&](int64_t k) {
    return ((sequence * s.keys + k) * s.kv_heads + kv_head) * d;
  };
  const auto at_head = [&](int64_t k) {
    return ((sequence * s.keys + k) * s.heads + head) * d;
  };
  std::vector<double> slopes(s.keys, p.scale);
  const std::vector<double> shares = SetShares(p, i, slopes);
  if (shares.empty()) return;
  // sums[x + j] += factor * values[y + j]; the factor is off by `error` and by
  // its rounding.
  const auto add = [&](double factor, double error,
                       const std::vector<double>& values, int64_t y,
                       std::vector<double>& sums,
                       std::vector<double>& sum_errors, int64_t x) {
    const double factor_error = error + rounding_ * std::fabs(factor);
    for (int64_t j = 0; j < d; ++j) {
      sums[x + j] += factor * values[y + j];
      sum_errors[x + j] += factor_error * std::fabs(values[y + j]);
    }
  };
  std::vector<double> mean_key(d, 0);
  for (int64_t k = 0; k < s.keys; ++k) {
    add(shares[k], 0, value_, at(k), output, errors.output, i * d);
    for (int64_t j = 0; j < d; ++j) mean_key[j] += shares[k] * key_[at(k) + j];
  }
  delta[i] = Dot(output, i * d, gradient_, i * d, d);
  // Delta is a sum over rounded outputs, whose error shifts the slopes of all
  // keys.
  double delta_error = 0;
  for (int64_t j = 0; j < d; ++j) {
    delta_error +=
        late_rounding_ * std::fabs(output[i * d + j] * gradient_[i * d + j]);
  }
  for (int64_t k = 0; k < s.keys; ++k) {
    if (!p.Sees(sequence, q, k)) continue;
    const double slope = slopes[k] * shares[k] *
                         (Dot(gradient_, i * d, value_, at(k), d) - delta[i]);
    const double slope_error = slopes[k] * shares[k] * delta_error;
    add(slope, 0, key_, at(k), query_gradient, errors.query_gradient, i * d);
    add(slope, slope_error, query_, i * d, key_of_heads_,
        head_errors_.key_gradient, at_head(k));
    add(shares[k], 0, gradient_, i * d, value_of_heads_,
        head_errors_.value_gradient, at_head(k));
  }
  for (int64_t j = i * d; j < (i + 1) * d; ++j) {
    errors.query_gradient[j] +=
        p.scale * delta_error * std::fabs(mean_key[j - i * d]) +
        late_rounding_ * std::fabs(query_gradient[j]);
    errors.query_gradient[j] *= kSecondOrder;
    errors.output[j] += late_rounding_ * std::fabs(output[j]);
    errors.output[j] *= kSecondOrder;
  }
}

void AttentionReference::SumGroups(const AttentionSizes& s) {
  const int64_t group = s.kv_heads == 0 ? 1 : s.heads / s.kv_heads;
  const auto sum = [&](const std::vector<double>& of_heads,
                       const std::vector<double>& head_errors,
                       std::vector<double>& gradient,
                       std::vector<double>& gradient_errors) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / s.d;
      const auto column = static_cast<int64_t>(i) % s.d;
      double& error = gradient_errors[i];
      for (int64_t member = 0; member < group; ++member) {
        const int64_t from = (row * group + member) * s.d + column;
        gradient[i] += of_heads[from];
        error += head_errors[from];
        if (group > 1) error += late_rounding_ * std::fabs(of_heads[from]);
      }
      error += late_rounding_ * std::fabs(gradient[i]);
      error *= kSecondOrder;
    }
  };
  sum(key_of_heads_, head_errors_.key_gradient, key_gradient,
      errors.key_gradient);
  sum(value_of_heads_, head_errors_.value_gradient, value_gradient,
      errors.value_gradient);
}

AttentionErrors AttentionErrorsOf(const AttentionProblem& p,
                                  const AttentionReference& reference) {
  const AttentionReference::Errors& errors = reference.errors;
  return {
      .output = LargestError(p.output, reference.output, 1, errors.output),
      .log_sum_exp = LargestError(p.log_sum_exp, reference.log_sum_exp),
      .query_gradient = LargestError(p.query_gradient, reference.query_gradient,
                                     2, errors.query_gradient),
      .key_gradient = LargestError(p.key_gradient, reference.key_gradient,
                                   KeyScale(p), errors.key_gradient),
      .value_gradient = LargestError(p.value_gradient, reference.value_gradient,
                                     KeyScale(p), errors.value_gradient)};
}

void ExpectAttentionIsReference(Ops& ops, AttentionProblem& p,
                                const AttentionReference& reference) {
  TESSERA_ASSERT_OK(ops.Run(op::Attend{p.Block(), p.State()}));
  ExpectClose(p.output, reference.output, 1, reference.errors.output);
  ExpectClose(p.log_sum_exp, reference.log_sum_exp);
  p.output.Set(reference.output);
  TESSERA_ASSERT_OK(ops.Run(
      op::RowDots{p.output.view(), p.output_gradient.view(), p.delta.view()}));
  ExpectClose(p.delta, reference.delta, 8);
  p.delta.Set(reference.delta);
  TESSERA_ASSERT_OK(ops.Run(op::AttendGradient{p.Block(), p.Gradients()}));
  ExpectClose(p.query_gradient, reference.query_gradient, 2,
              reference.errors.query_gradient);
  ExpectClose(p.key_gradient, reference.key_gradient, KeyScale(p),
              reference.errors.key_gradient);
  ExpectClose(p.value_gradient, reference.value_gradient, KeyScale(p),
              reference.errors.value_gradient);
  for (const TestTensor* x :
       {&p.query, &p.key, &p.output, &p.log_sum_exp, &p.query_gradient,
        &p.key_gradient, &p.value_gradient}) {
    EXPECT_TRUE(x->GapsAreIntact());
  }
}

void ExpectAttentionIsReference(Ops& ops, AttentionProblem& p,
                                Arithmetic arithmetic) {
  ExpectAttentionIsReference(ops, p, AttentionReference(p, arithmetic));
}

void ExpectAttentionOfBothTypes(std::span<Ops* const> all_ops,
                                const MaskedAttentionCase& attention,
                                bool rounds_late) {
  SCOPED_TRACE(testing::Message()
               << attention.sizes
               << (attention.kind == BlockKind::kCausal ? " causal" : " full"));
  std::mt19937_64 random(1);
  AttentionProblem inputs(DType::kBF16, attention.sizes, random);
  inputs.kind = attention.kind;
  const AttentionReference reference(
      inputs, rounds_late ? Arithmetic::kTensorCores : Arithmetic::kStatistics);
  AttentionReference exact = reference;
  exact.errors = {};
  for (Ops* const ops : all_ops) {
    AttentionProblem problem = inputs;
    ExpectAttentionIsReference(*ops, problem, rounds_late ? reference : exact);
    // The error of f32 is far below that of bf16.
    if (rounds_late) {
      EXPECT_GT(AttentionErrorsOf(problem, exact).query_gradient, 3)
          << "another kernel computed this block";
    }
  }
  AttentionProblem wide(DType::kF32, attention.sizes, random);
  wide.kind = attention.kind;
  wide.query.Set(inputs.query.values());
  wide.key.Set(inputs.key.values());
  wide.value.Set(inputs.value.values());
  wide.output_gradient.Set(inputs.output_gradient.values());
  ExpectAttentionIsReference(*all_ops.front(), wide, exact);
}

}  // namespace tessera::tensor_parallel
