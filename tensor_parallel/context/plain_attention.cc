#include "tensor_parallel/context/plain_attention.h"

#include <cmath>

namespace tessera::tensor_parallel {
namespace {

struct Problem {
  const PlainTensor& query;
  const PlainTensor& key;
  const PlainTensor& value;
  const PlainTensor& gradient;
  double scale;
};

// The row of the softmax of a query that sees the first `seen` keys.
std::vector<double> Softmax(const Problem& problem, int64_t i, int64_t head,
                            int64_t kv, int64_t seen) {
  std::vector<double> p(static_cast<size_t>(seen));
  double sum = 0;
  for (int64_t j = 0; j < seen; ++j) {
    double product = 0;
    for (int64_t d = 0; d < problem.query.size; ++d) {
      product += problem.query.at(i, head, d) * problem.key.at(j, kv, d);
    }
    sum += p[static_cast<size_t>(j)] = std::exp(product * problem.scale);
  }
  for (double& value : p) value /= sum;
  return p;
}

void AddQuery(const Problem& problem, int64_t i, int64_t head, int64_t seen,
              PlainAttention& result) {
  const int64_t kv = head / (problem.query.heads / problem.key.heads);
  const std::vector<double> p = Softmax(problem, i, head, kv, seen);
  std::vector<double> dp(p.size());
  double dot = 0;
  for (int64_t j = 0; j < seen; ++j) {
    const auto at = static_cast<size_t>(j);
    for (int64_t d = 0; d < problem.query.size; ++d) {
      const double gradient = problem.gradient.at(i, head, d);
      result.output.at(i, head, d) += p[at] * problem.value.at(j, kv, d);
      result.value_gradient.at(j, kv, d) += p[at] * gradient;
      dp[at] += problem.value.at(j, kv, d) * gradient;
    }
    dot += p[at] * dp[at];
  }
  for (int64_t j = 0; j < seen; ++j) {
    const auto at = static_cast<size_t>(j);
    const double ds = p[at] * (dp[at] - dot) * problem.scale;
    for (int64_t d = 0; d < problem.query.size; ++d) {
      result.query_gradient.at(i, head, d) += ds * problem.key.at(j, kv, d);
      result.key_gradient.at(j, kv, d) += ds * problem.query.at(i, head, d);
    }
  }
}

PlainTensor ZerosLike(const PlainTensor& x) {
  return PlainTensor(x.length, x.heads, x.size);
}

}  // namespace

PlainAttention Attend(const PlainTensor& query, const PlainTensor& key,
                      const PlainTensor& value, const PlainTensor& gradient,
                      bool causal) {
  const Problem problem = {query, key, value, gradient,
                           1 / std::sqrt(static_cast<double>(query.size))};
  PlainAttention result = {ZerosLike(query), ZerosLike(query), ZerosLike(key),
                           ZerosLike(value)};
  for (int64_t head = 0; head < query.heads; ++head) {
    for (int64_t i = 0; i < query.length; ++i) {
      AddQuery(problem, i, head, causal ? i + 1 : query.length, result);
    }
  }
  return result;
}

void Rotate(double base, bool back, PlainTensor& x) {
  const int64_t half = x.size / 2;
  for (int64_t p = 0; p < x.length; ++p) {
    for (int64_t head = 0; head < x.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const double exponent =
            -2 * static_cast<double>(i) / static_cast<double>(x.size);
        const double angle =
            (back ? -1 : 1) * static_cast<double>(p) * std::pow(base, exponent);
        const double a = x.at(p, head, i);
        const double b = x.at(p, head, i + half);
        x.at(p, head, i) = a * std::cos(angle) - b * std::sin(angle);
        x.at(p, head, i + half) = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
}

}  // namespace tessera::tensor_parallel
