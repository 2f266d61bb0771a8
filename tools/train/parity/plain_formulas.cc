#include "tools/train/parity/plain_formulas.h"

#include <algorithm>
#include <cmath>

namespace tessera::train::plain {

Numbers Linear(const Numbers& x, const Numbers& w, size_t inputs) {
  const size_t rows = x.size() / inputs, outputs = w.size() / inputs;
  Numbers y(rows * outputs);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; ++o) {
      for (size_t i = 0; i < inputs; ++i) {
        y[r * outputs + o] += w[o * inputs + i] * x[r * inputs + i];
      }
    }
  }
  return y;
}

void LinearBackward(const Numbers& dy, const Numbers& x, const Numbers& w,
                    size_t inputs, Numbers& dx, Numbers& dw) {
  const size_t rows = x.size() / inputs, outputs = w.size() / inputs;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; ++o) {
      for (size_t i = 0; i < inputs; ++i) {
        dx[r * inputs + i] += dy[r * outputs + o] * w[o * inputs + i];
        dw[o * inputs + i] += dy[r * outputs + o] * x[r * inputs + i];
      }
    }
  }
}

namespace {

double RootMeanSquare(const double* x, size_t width, double epsilon) {
  double squares = 0;
  for (size_t i = 0; i < width; ++i) squares += x[i] * x[i];
  return std::sqrt(squares / static_cast<double>(width) + epsilon);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

Numbers RmsNorm(const Numbers& x, const Numbers& g, double epsilon) {
  const size_t width = g.size();
  Numbers y(x.size());
  for (size_t at = 0; at < x.size(); at += width) {
    const double root = RootMeanSquare(&x[at], width, epsilon);
    for (size_t i = 0; i < width; ++i) y[at + i] = g[i] * x[at + i] / root;
  }
  return y;
}

// d root / d x[i] = x[i] / (width root).
void RmsNormBackward(const Numbers& dy, const Numbers& x, const Numbers& g,
                     double epsilon, Numbers& dx, Numbers& dg) {
  const size_t width = g.size();
  for (size_t at = 0; at < x.size(); at += width) {
    const double root = RootMeanSquare(&x[at], width, epsilon);
    double along = 0;
    for (size_t i = 0; i < width; ++i) {
      along += dy[at + i] * g[i] * x[at + i];
      dg[i] += dy[at + i] * x[at + i] / root;
    }
    along /= static_cast<double>(width) * root * root * root;
    for (size_t i = 0; i < width; ++i) {
      dx[at + i] += dy[at + i] * g[i] / root - along * x[at + i];
    }
  }
}

Numbers SwiGlu(const Numbers& gate, const Numbers& up) {
  Numbers y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
  }
  return y;
}

void SwiGluBackward(const Numbers& dy, const Numbers& gate, const Numbers& up,
                    Numbers& dgate, Numbers& dup) {
  for (size_t i = 0; i < dy.size(); ++i) {
    const double s = Sigmoid(gate[i]);
    dgate[i] += dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    dup[i] += dy[i] * gate[i] * s;
  }
}

void Rotate(const HeadSizes& sizes, size_t heads, double base, double direction,
            Numbers& x) {
  const size_t d = sizes.head_size;
  for (size_t at = 0; at < x.size(); at += d) {
    const size_t position = at / (d * heads) % sizes.length;
    for (size_t j = 0; j < d / 2; ++j) {
      const double exponent =
          -2 * static_cast<double>(j) / static_cast<double>(d);
      const double angle =
          direction * static_cast<double>(position) * std::pow(base, exponent);
      const double a = x[at + j], b = x[at + j + d / 2];
      x[at + j] = a * std::cos(angle) - b * std::sin(angle);
      x[at + j + d / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

Numbers Softmax(const double* logits, size_t count) {
  const double largest = *std::max_element(logits, logits + count);
  Numbers p(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    p[i] = std::exp(logits[i] - largest);
    sum += p[i];
  }
  for (double& value : p) value /= sum;
  return p;
}

namespace {

// One query: where it, its head's outputs and the keys that it sees begin.
struct Query {
  size_t at;         // Of q and of the output.
  size_t first_key;  // Of k and v, in numbers.
  size_t stride;     // Between keys.
  size_t keys;       // Those at its own position and before.
};

template <typename Function>
void ForEachQuery(const HeadSizes& s, Function function) {
  const size_t d = s.head_size, sharing = s.heads / s.kv_heads;
  for (size_t sequence = 0; sequence < s.sequences; ++sequence) {
    for (size_t i = 0; i < s.length; ++i) {
      for (size_t h = 0; h < s.heads; ++h) {
        const size_t first = sequence * s.length;
        function(Query{.at = ((first + i) * s.heads + h) * d,
                       .first_key = (first * s.kv_heads + h / sharing) * d,
                       .stride = s.kv_heads * d,
                       .keys = i + 1});
      }
    }
  }
}

double Dot(const double* a, const double* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

Numbers Probabilities(const Query& query, size_t d, const Numbers& q,
                      const Numbers& k) {
  Numbers scores(query.keys);
  for (size_t j = 0; j < query.keys; ++j) {
    const double* key = &k[query.first_key + j * query.stride];
    scores[j] = Dot(&q[query.at], key, d) / std::sqrt(static_cast<double>(d));
  }
  return Softmax(scores.data(), scores.size());
}

}  // namespace

Numbers Attend(const HeadSizes& sizes, const Numbers& q, const Numbers& k,
               const Numbers& v) {
  const size_t d = sizes.head_size;
  Numbers y(q.size());
  ForEachQuery(sizes, [&](const Query& query) {
    const Numbers p = Probabilities(query, d, q, k);
    for (size_t j = 0; j < query.keys; ++j) {
      for (size_t i = 0; i < d; ++i) {
        y[query.at + i] += p[j] * v[query.first_key + j * query.stride + i];
      }
    }
  });
  return y;
}

// Of a softmax p of scores s: ds[j] = p[j] (dp[j] - sum over i of p[i] dp[i]).
void AttendBackward(const HeadSizes& sizes, const Numbers& dy, const Numbers& q,
                    const Numbers& k, const Numbers& v, Numbers& dq,
                    Numbers& dk, Numbers& dv) {
  const size_t d = sizes.head_size;
  ForEachQuery(sizes, [&](const Query& query) {
    const Numbers p = Probabilities(query, d, q, k);
    Numbers dp(query.keys);
    for (size_t j = 0; j < query.keys; ++j) {
      dp[j] = Dot(&dy[query.at], &v[query.first_key + j * query.stride], d);
    }
    const double mean = Dot(p.data(), dp.data(), query.keys);
    for (size_t j = 0; j < query.keys; ++j) {
      const double ds =
          p[j] * (dp[j] - mean) / std::sqrt(static_cast<double>(d));
      const size_t key = query.first_key + j * query.stride;
      for (size_t i = 0; i < d; ++i) {
        dq[query.at + i] += ds * k[key + i];
        dk[key + i] += ds * q[query.at + i];
        dv[key + i] += p[j] * dy[query.at + i];
      }
    }
  });
}

}  // namespace tessera::train::plain
