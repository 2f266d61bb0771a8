// A reference for tests: a Llama block and head in plain loops, by the
// definitions, for any number type. It shares no code with the library.
//
// With complex numbers it computes derivatives: f(x + i h) = f(x) + i h f'(x)
// up to h^2, without cancellation, so that for h = 1e-30 the imaginary part
// divided by h is the derivative to full precision (Squire and Trapp, Using
// Complex Variables to Estimate Derivatives of Real Functions, SIAM Review 40,
// 1998).
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_PLAIN_LLAMA_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_PLAIN_LLAMA_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace tessera::plain_llama {

struct Sizes {
  size_t sequences, length, width, heads, kv_heads, head_size, hidden,
      vocabulary;
  double epsilon, rotary_base;
  size_t window = 0;  // Keys that a query sees; 0: all.
  constexpr size_t tokens() const { return sequences * length; }
};

// Matrices are row-major, [outputs, inputs].
template <typename T>
struct Weights {
  std::vector<T> attention_norm, query, key, value, query_bias, key_bias,
      value_bias, query_norm, key_norm, output, output_bias, mlp_norm, gate,
      gate_bias, up, up_bias, down, down_bias, final_norm, table;
};

template <typename T>
using Rows = std::vector<std::vector<T>>;

template <typename T>
std::vector<T> RmsNorm(const std::vector<T>& x, const std::vector<T>& weight,
                       double epsilon) {
  T squares = 0;
  for (const T& v : x) squares += v * v;
  const T root =
      std::sqrt(squares / static_cast<double>(x.size()) + T(epsilon));
  std::vector<T> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] / root * weight[i]);
  return y;
}

template <typename T>
std::vector<T> Linear(const std::vector<T>& matrix, const std::vector<T>& bias,
                      const std::vector<T>& x) {
  std::vector<T> y(matrix.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    if (!bias.empty()) y[o] = bias[o];
    for (size_t i = 0; i < x.size(); ++i)
      y[o] += matrix[o * x.size() + i] * x[i];
  }
  return y;
}

// Rotates one head: elements j and j + d/2 form a pair, rotated by position *
// base^(-2j/d).
template <typename T>
void Rotate(T* head, size_t d, double base, size_t position) {
  for (size_t j = 0; j < d / 2; ++j) {
    const double angle =
        static_cast<double>(position) *
        std::pow(base, -2 * static_cast<double>(j) / static_cast<double>(d));
    const T a = head[j], b = head[j + d / 2];
    head[j] = a * std::cos(angle) - b * std::sin(angle);
    head[j + d / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

// Projects to queries or keys, with their norm, or to values, without a norm.
template <typename T>
Rows<T> Project(const Sizes& s, const Rows<T>& x, const std::vector<T>& matrix,
                const std::vector<T>& bias, size_t heads,
                const std::vector<T>* norm) {
  Rows<T> y;
  for (size_t t = 0; t < x.size(); ++t) {
    y.push_back(Linear(matrix, bias, x[t]));
    for (size_t h = 0; norm != nullptr && h < heads; ++h) {
      T* const head = &y[t][h * s.head_size];
      if (!norm->empty()) {
        const std::vector<T> normalised =
            RmsNorm(std::vector<T>(head, head + s.head_size), *norm, s.epsilon);
        std::copy(normalised.begin(), normalised.end(), head);
      }
      Rotate(head, s.head_size, s.rotary_base, t % s.length);
    }
  }
  return y;
}

// Causal attention, in which each kv head serves heads / kv_heads query heads.
template <typename T>
std::vector<T> Attend(const Sizes& s, const Rows<T>& q, const Rows<T>& k,
                      const Rows<T>& v, size_t token) {
  const size_t d = s.head_size, begin = token / s.length * s.length;
  const bool hides = s.window > 0 && token + 1 - begin > s.window;
  const size_t first = hides ? token + 1 - s.window : begin;
  std::vector<T> result(s.heads * d);
  for (size_t h = 0; h < s.heads; ++h) {
    const size_t kv = h / (s.heads / s.kv_heads);
    std::vector<T> weights;
    T sum = 0;
    for (size_t other = first; other <= token; ++other) {
      T product = 0;
      for (size_t i = 0; i < d; ++i) {
        product += q[token][h * d + i] * k[other][kv * d + i];
      }
      weights.push_back(std::exp(product / std::sqrt(static_cast<double>(d))));
      sum += weights.back();
    }
    for (size_t other = first; other <= token; ++other) {
      for (size_t i = 0; i < d; ++i) {
        result[h * d + i] +=
            weights[other - first] / sum * v[other][kv * d + i];
      }
    }
  }
  return result;
}

template <typename T>
std::vector<T> Mlp(const Weights<T>& w, const std::vector<T>& x) {
  const std::vector<T> gate = Linear(w.gate, w.gate_bias, x);
  const std::vector<T> up = Linear(w.up, w.up_bias, x);
  std::vector<T> product;
  for (size_t i = 0; i < gate.size(); ++i) {
    product.push_back(gate[i] / (T(1) + std::exp(-gate[i])) * up[i]);
  }
  return Linear(w.down, w.down_bias, product);
}

template <typename T>
Rows<T> Block(const Sizes& s, const Weights<T>& w, const Rows<T>& x) {
  Rows<T> normalised;
  for (const auto& row : x) {
    normalised.push_back(RmsNorm(row, w.attention_norm, s.epsilon));
  }
  const Rows<T> q =
      Project(s, normalised, w.query, w.query_bias, s.heads, &w.query_norm);
  const Rows<T> k =
      Project(s, normalised, w.key, w.key_bias, s.kv_heads, &w.key_norm);
  const Rows<T> v =
      Project<T>(s, normalised, w.value, w.value_bias, s.kv_heads, nullptr);
  Rows<T> y;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<T> middle =
        Linear(w.output, w.output_bias, Attend(s, q, k, v, t));
    for (size_t i = 0; i < middle.size(); ++i) middle[i] += x[t][i];
    std::vector<T> row = Mlp(w, RmsNorm(middle, w.mlp_norm, s.epsilon));
    for (size_t i = 0; i < row.size(); ++i) row[i] += middle[i];
    y.push_back(std::move(row));
  }
  return y;
}

// Returns -log of the probability of each token's target.
template <typename T>
std::vector<T> Losses(const Sizes& s, const Weights<T>& w, const Rows<T>& x,
                      const std::vector<size_t>& targets) {
  std::vector<T> losses;
  for (size_t t = 0; t < x.size(); ++t) {
    const std::vector<T> logits =
        Linear(w.table, {}, RmsNorm(x[t], w.final_norm, s.epsilon));
    T sum = 0;
    for (const T& logit : logits) sum += std::exp(logit);
    losses.push_back(std::log(sum) - logits[targets[t]]);
  }
  return losses;
}

}  // namespace tessera::plain_llama

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_PLAIN_LLAMA_H_
