#include "tools/train/parity/testing/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <numbers>
#include <vector>

namespace tessera::train {

using tensor_parallel::GluKind;
using tensor_parallel::RotaryFrequencies;
using tensor_parallel::RotaryScaling;
// The formulas of a Llama model and their derivatives, in plain loops over rows
// of doubles. Backward functions add to the gradients that they are given.
namespace plain {

using Numbers = std::vector<double>;  // Row by row.
using Counts = std::vector<size_t>;   // One per token.

// y[r] = w x[r], for rows of `inputs` numbers; w is [outputs, inputs].
Numbers Linear(const Numbers& x, const Numbers& w, size_t inputs);
void LinearBackward(const Numbers& dy, const Numbers& x, const Numbers& w,
                    size_t inputs, Numbers& dx, Numbers& dw);

// y = g x / sqrt(mean x^2 + epsilon), row by row; g is a row.
Numbers RmsNorm(const Numbers& x, const Numbers& g, double epsilon);
void RmsNormBackward(const Numbers& dy, const Numbers& x, const Numbers& g,
                     double epsilon, Numbers& dx, Numbers& dg);

// y = silu(gate) up, or gelu(gate) up with GELU's approximation by tanh, or
// with g = min(gate, 7) and u = up between -7 and 7, g sigmoid(1.702 g) (u +
// 1).
Numbers Glu(GluKind kind, const Numbers& gate, const Numbers& up);
void GluBackward(GluKind kind, const Numbers& dy, const Numbers& gate,
                 const Numbers& up, Numbers& dgate, Numbers& dup);

struct HeadSizes {
  size_t sequences, length, heads, kv_heads, head_size;
  double scale = 1, cap = 0;  // Of scores; a cap of 0 is none.
  size_t value_size = 0;
  // The part of a head that is rotated, and whether its pairs are adjacent.
  size_t rotary_begin = 0, rotary_size = 0;
  bool adjacent_pairs = false;
};

// Rotates the pairs (j, j + d/2), or (2j, 2j + 1), of d elements of each of a
// token's `heads` heads by position times frequency times `direction`, which is
// 1, or -1 for gradients.
void Rotate(const HeadSizes& sizes, size_t heads,
            const RotaryFrequencies& rotary, double direction, Numbers& x);

// softmax(capped(scale q k^T)) v. A token attends to `seen` keys, the last of
// which is its own. q is [tokens, heads, d], k is [tokens, kv_heads, d], v and
// the result have heads of value_size. Each head's sink, if there are any, is
// the score of one more key, whose value is zero.
Numbers Attend(const HeadSizes& sizes, const Counts& seen, const Numbers& q,
               const Numbers& k, const Numbers& v, const Numbers& sinks);
void AttendBackward(const HeadSizes& sizes, const Counts& seen,
                    const Numbers& dy, const Numbers& q, const Numbers& k,
                    const Numbers& v, const Numbers& sinks, Numbers& dq,
                    Numbers& dk, Numbers& dv, Numbers& dsinks);

// By head, the largest score of a query and a key.
Numbers MaxScores(const HeadSizes& sizes, const Counts& seen, const Numbers& q,
                  const Numbers& k);

// Probabilities of a row of logits.
Numbers Softmax(const double* logits, size_t count);

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

namespace {

struct Activation {
  double value, slope;
};

Activation Activate(GluKind kind, double x) {
  if (kind == GluKind::kSwiGlu) {
    const double s = Sigmoid(x);
    return {x * s, s * (1 + x * (1 - s))};
  }
  if (kind == GluKind::kClampedGlu) {
    const double g = std::min(x, 7.0), s = Sigmoid(1.702 * g);
    return {g * s, x > 7 ? 0 : s + 1.702 * g * s * (1 - s)};
  }
  const double root = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  const double inner = root * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t + x * (1 - t * t) * inner)};
}

// The factor of the activation, and its slope.
Activation FactorOf(GluKind kind, double up) {
  if (kind != GluKind::kClampedGlu) return {up, 1};
  return {1 + std::min(std::max(up, -7.0), 7.0), std::abs(up) > 7 ? 0.0 : 1.0};
}

}  // namespace

Numbers Glu(GluKind kind, const Numbers& gate, const Numbers& up) {
  Numbers y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = Activate(kind, gate[i]).value * FactorOf(kind, up[i]).value;
  }
  return y;
}

void GluBackward(GluKind kind, const Numbers& dy, const Numbers& gate,
                 const Numbers& up, Numbers& dgate, Numbers& dup) {
  for (size_t i = 0; i < dy.size(); ++i) {
    const Activation activation = Activate(kind, gate[i]);
    const Activation factor = FactorOf(kind, up[i]);
    dgate[i] += dy[i] * factor.value * activation.slope;
    dup[i] += dy[i] * activation.value * factor.slope;
  }
}

// The factor of a frequency by its wavelength in positions.
double Llama3Factor(const RotaryFrequencies& rotary, double whole) {
  const double wave = 2 * std::numbers::pi / whole;
  const auto original = static_cast<double>(rotary.original_positions);
  if (wave > original / rotary.low_turns) return 1 / rotary.factor;
  if (wave < original / rotary.high_turns) return 1;
  const double smooth = (original / wave - rotary.low_turns) /
                        (rotary.high_turns - rotary.low_turns);
  return (1 - smooth) / rotary.factor + smooth;
}

// The factor of a frequency by the number of its pair. A wavelength of
// original / turns belongs to the pair d log(wave / 2 pi) / (2 log base).
double YarnFactor(const RotaryFrequencies& rotary, size_t pair, double d) {
  const auto pair_of = [&](double turns) {
    const double wave = static_cast<double>(rotary.original_positions) / turns;
    return d * std::log(wave / (2 * std::numbers::pi)) /
           (2 * std::log(rotary.base));
  };
  double from = pair_of(rotary.high_turns), to = pair_of(rotary.low_turns);
  if (rotary.truncate) from = std::floor(from), to = std::ceil(to);
  from = std::max(from, 0.0);
  to = std::min(to, d - 1);
  if (from == to) to += 0.001;
  const double ramp = (static_cast<double>(pair) - from) / (to - from);
  const double divided = std::min(1.0, std::max(0.0, ramp));
  return divided / rotary.factor + 1 - divided;
}

double FrequencyOf(const RotaryFrequencies& rotary, size_t pair, size_t turned,
                   size_t length) {
  const auto d = static_cast<double>(turned);
  const auto original = static_cast<double>(rotary.original_positions);
  const bool is_long = static_cast<double>(length) > original;
  double base = rotary.base;
  if (rotary.scaling == RotaryScaling::kDynamic && is_long) {
    const double longer = static_cast<double>(length) / original;
    base *= std::pow(rotary.factor * longer - rotary.factor + 1, d / (d - 2));
  }
  const double whole = std::pow(base, -2 * static_cast<double>(pair) / d);
  switch (rotary.scaling) {
    case RotaryScaling::kNone:
    case RotaryScaling::kDynamic:
      return whole;
    case RotaryScaling::kLinear:
      return whole / rotary.factor;
    case RotaryScaling::kLongRope:
      return whole /
             (is_long ? rotary.long_factors : rotary.short_factors)[pair];
    case RotaryScaling::kYarn:
      return whole * YarnFactor(rotary, pair, d);
    case RotaryScaling::kLlama3:
      return whole * Llama3Factor(rotary, whole);
  }
  return whole;
}

void Rotate(const HeadSizes& sizes, size_t heads,
            const RotaryFrequencies& rotary, double direction, Numbers& x) {
  const size_t d = sizes.head_size;
  const auto turned = static_cast<size_t>(
      static_cast<double>(sizes.rotary_size) * rotary.partial);
  for (size_t at = 0; at < x.size(); at += d) {
    const size_t position = at / (d * heads) % sizes.length;
    for (size_t j = 0; j < turned / 2; ++j) {
      const double angle = direction * static_cast<double>(position) *
                           FrequencyOf(rotary, j, turned, sizes.length);
      const size_t first_of_part = at + sizes.rotary_begin;
      double& a = x[first_of_part + (sizes.adjacent_pairs ? 2 * j : j)];
      double& b = x[first_of_part +
                    (sizes.adjacent_pairs ? 2 * j + 1 : j + turned / 2)];
      const double c = rotary.attention_factor * std::cos(angle);
      const double s = rotary.attention_factor * std::sin(angle);
      const double first = a * c - b * s;
      b = b * c + a * s;
      a = first;
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

// One query of a head, and the keys to which it attends.
struct Query {
  size_t at;         // The offset in q.
  size_t first_key;  // The offset of the first key in k.
  size_t stride;     // The distance between keys.
  size_t keys;       // The number of keys, up to its own position.
  size_t head;
  size_t result;                     // The offset in the result.
  size_t first_value, value_stride;  // Like the keys, in v.
};

template <typename Function>
void ForEachQuery(const HeadSizes& s, const Counts& seen, Function function) {
  const size_t d = s.head_size, sharing = s.heads / s.kv_heads;
  for (size_t sequence = 0; sequence < s.sequences; ++sequence) {
    for (size_t i = 0; i < s.length; ++i) {
      for (size_t h = 0; h < s.heads; ++h) {
        const size_t first = sequence * s.length;
        const size_t keys = seen[first + i];
        const size_t key = first + i + 1 - keys;
        function(Query{
            .at = ((first + i) * s.heads + h) * d,
            .first_key = (key * s.kv_heads + h / sharing) * d,
            .stride = s.kv_heads * d,
            .keys = keys,
            .head = h,
            .result = ((first + i) * s.heads + h) * s.value_size,
            .first_value = (key * s.kv_heads + h / sharing) * s.value_size,
            .value_stride = s.kv_heads * s.value_size});
      }
    }
  }
}

double Dot(const double* a, const double* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

double Capped(double x, double cap) {
  return cap == 0 ? x : cap * std::tanh(x / cap);
}
// The slope of Capped where its value is y.
double CapSlope(double y, double cap) {
  return cap == 0 ? 1 : 1 - y / cap * (y / cap);
}

// The scores of the keys, then that of the sink.
Numbers ScoresOf(const HeadSizes& sizes, const Query& query, const Numbers& q,
                 const Numbers& k, const Numbers& sinks) {
  Numbers scores(query.keys);
  for (size_t j = 0; j < query.keys; ++j) {
    const double* key = &k[query.first_key + j * query.stride];
    scores[j] = Capped(sizes.scale * Dot(&q[query.at], key, sizes.head_size),
                       sizes.cap);
  }
  if (!sinks.empty()) scores.push_back(sinks[query.head]);
  return scores;
}

}  // namespace

Numbers Attend(const HeadSizes& sizes, const Counts& seen, const Numbers& q,
               const Numbers& k, const Numbers& v, const Numbers& sinks) {
  const size_t d = sizes.value_size;
  Numbers y(q.size() / sizes.head_size * d);
  ForEachQuery(sizes, seen, [&](const Query& query) {
    const Numbers scores = ScoresOf(sizes, query, q, k, sinks);
    const Numbers p = Softmax(scores.data(), scores.size());
    for (size_t j = 0; j < query.keys; ++j) {
      for (size_t i = 0; i < d; ++i) {
        y[query.result + i] +=
            p[j] * v[query.first_value + j * query.value_stride + i];
      }
    }
  });
  return y;
}

Numbers MaxScores(const HeadSizes& sizes, const Counts& seen, const Numbers& q,
                  const Numbers& k) {
  Numbers largest(sizes.heads, -std::numeric_limits<double>::infinity());
  ForEachQuery(sizes, seen, [&](const Query& query) {
    for (const double score : ScoresOf(sizes, query, q, k, {})) {
      largest[query.head] = std::max(largest[query.head], score);
    }
  });
  return largest;
}

// The gradient of a softmax p of scores s is ds[j] = p[j] (dp[j] - sum over i
// of p[i] dp[i]).
void AttendBackward(const HeadSizes& sizes, const Counts& seen,
                    const Numbers& dy, const Numbers& q, const Numbers& k,
                    const Numbers& v, const Numbers& sinks, Numbers& dq,
                    Numbers& dk, Numbers& dv, Numbers& dsinks) {
  const size_t d = sizes.head_size;
  ForEachQuery(sizes, seen, [&](const Query& query) {
    const Numbers scores = ScoresOf(sizes, query, q, k, sinks);
    const Numbers p = Softmax(scores.data(), scores.size());
    Numbers dp(query.keys);
    for (size_t j = 0; j < query.keys; ++j) {
      const size_t value = query.first_value + j * query.value_stride;
      dp[j] = Dot(&dy[query.result], &v[value], sizes.value_size);
      for (size_t i = 0; i < sizes.value_size; ++i) {
        dv[value + i] += p[j] * dy[query.result + i];
      }
    }
    const double mean = Dot(p.data(), dp.data(), query.keys);
    if (!sinks.empty()) dsinks[query.head] -= p[query.keys] * mean;
    for (size_t j = 0; j < query.keys; ++j) {
      const double ds =
          p[j] * (dp[j] - mean) * sizes.scale * CapSlope(scores[j], sizes.cap);
      const size_t key = query.first_key + j * query.stride;
      for (size_t i = 0; i < d; ++i) {
        dq[query.at + i] += ds * k[key + i];
        dk[key + i] += ds * q[query.at + i];
      }
    }
  });
}

}  // namespace plain

namespace {

std::vector<double> Zeros(int64_t rows, int64_t columns) {
  return std::vector<double>(static_cast<size_t>(rows * columns));
}

uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

ReferenceWeights ReferenceZeros(const model_files::ModelConfig& model) {
  const int64_t queries = model.heads * model.head_size;
  const int64_t kvs = model.kv_heads * model.head_size;
  ReferenceWeights weights;
  weights.embedding = Zeros(model.vocabulary, model.hidden);
  for (int64_t l = 0; l < model.layers; ++l) {
    ReferenceLayer& layer = weights.layers.emplace_back();
    const model_files::LatentConfig& latent = model.latent;
    if (latent.kv_rank > 0) {
      layer = {.query = Zeros(queries, latent.query_rank > 0 ? latent.query_rank
                                                             : model.hidden),
               .output = Zeros(model.hidden, model.heads * latent.value),
               .query_norm = Zeros(latent.query_rank, 1),
               .key_norm = Zeros(latent.kv_rank, 1),
               .query_down = Zeros(latent.query_rank, model.hidden),
               .kv_down = Zeros(latent.kv_rank + latent.rope, model.hidden),
               .kv_up = Zeros(model.heads * (latent.nope + latent.value),
                              latent.kv_rank)};
    } else {
      layer = {.query = Zeros(queries, model.hidden),
               .key = Zeros(kvs, model.hidden),
               .value = Zeros(kvs, model.hidden),
               .output = Zeros(model.hidden, queries)};
    }
    if (model.traits().input_norms) {
      layer.attention_norm = layer.mlp_norm = Zeros(model.hidden, 1);
    }
    if (model.traits().output_norms) {
      layer.attention_output_norm = layer.mlp_output_norm =
          Zeros(model.hidden, 1);
    }
    const model_files::MixtureConfig& mixture = model.mixture;
    const auto expert_of = [&](int64_t units) {
      ReferenceExpert expert = {.gate = Zeros(units, model.hidden),
                                .up = Zeros(units, model.hidden),
                                .down = Zeros(model.hidden, units)};
      if (model.traits().mixture.like_gpt_oss) {
        expert.gate_bias = expert.up_bias = Zeros(units, 1);
        expert.down_bias = Zeros(model.hidden, 1);
      }
      return expert;
    };
    if (model.IsMixture(l)) {
      layer.router = Zeros(mixture.experts, model.hidden);
      if (model.traits().mixture.sigmoid)
        layer.router_bias = Zeros(mixture.experts, 1);
      if (model.traits().mixture.like_gpt_oss)
        layer.router_logit_bias = Zeros(mixture.experts, 1);
      for (int64_t e = 0; e < mixture.experts; ++e) {
        layer.experts.push_back(expert_of(mixture.intermediate));
      }
      if (mixture.shared_intermediate > 0) {
        layer.shared = expert_of(mixture.shared_intermediate);
      }
    } else {
      layer.mlp = expert_of(model.intermediate);
    }
    if (model.qkv_bias) {
      layer.query_bias = Zeros(queries, 1);
      layer.key_bias = layer.value_bias = Zeros(kvs, 1);
    }
    if (model.traits().qk_norm) {
      layer.query_norm =
          Zeros(model.traits().shared_qk_norm ? queries : model.head_size, 1);
      layer.key_norm =
          Zeros(model.traits().shared_qk_norm ? kvs : model.head_size, 1);
    }
    if (model.output_bias) layer.output_bias = Zeros(model.hidden, 1);
    if (model.traits().sinks) layer.sinks = Zeros(model.heads, 1);
  }
  weights.final_norm = Zeros(model.hidden, 1);
  if (!model.tied_embeddings) {
    weights.head = Zeros(model.vocabulary, model.hidden);
  }
  return weights;
}

std::vector<NamedWeights> TensorsOf(ReferenceWeights& weights) {
  std::vector<NamedWeights> tensors = {
      {"model.embed_tokens.weight", &weights.embedding}};
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    ReferenceLayer& layer = weights.layers[l];
    const std::string at = "model.layers." + std::to_string(l) + ".";
    for (const NamedWeights& tensor : std::initializer_list<NamedWeights>{
             {"input_layernorm.weight", &layer.attention_norm},
             {"self_attn.q_a_proj.weight", &layer.query_down},
             {"self_attn.q_proj.weight", &layer.query},  // Or q_b_proj.
             {"self_attn.q_proj.bias", &layer.query_bias},
             {"self_attn.k_proj.weight", &layer.key},
             {"self_attn.k_proj.bias", &layer.key_bias},
             {"self_attn.v_proj.weight", &layer.value},
             {"self_attn.v_proj.bias", &layer.value_bias},
             {"self_attn.kv_a_proj_with_mqa.weight", &layer.kv_down},
             {"self_attn.kv_b_proj.weight", &layer.kv_up},
             {"self_attn.o_proj.weight", &layer.output},
             {"self_attn.o_proj.bias", &layer.output_bias},
             {"self_attn.sinks", &layer.sinks},
             {"self_attn.q_norm.weight", &layer.query_norm},
             {"self_attn.k_norm.weight", &layer.key_norm},
             {"attention_output_norm.weight", &layer.attention_output_norm},
             {"post_attention_layernorm.weight", &layer.mlp_norm},
             {"mlp.gate_proj.weight", &layer.mlp.gate},
             {"mlp.up_proj.weight", &layer.mlp.up},
             {"mlp.down_proj.weight", &layer.mlp.down},
             {"mlp.gate.weight", &layer.router},
             {"mlp.gate.bias", &layer.router_logit_bias},
             {"mlp.gate.e_score_correction_bias", &layer.router_bias},
             {"mlp_output_norm.weight", &layer.mlp_output_norm}}) {
      if (tensor.values->empty()) continue;
      tensors.push_back({at + tensor.name, tensor.values});
    }
    const auto add_expert = [&](const std::string& name,
                                ReferenceExpert& expert) {
      const auto add = [&](const std::string& projection, auto& weight,
                           auto& bias) {
        tensors.push_back({at + name + projection + ".weight", &weight});
        if (bias.empty()) return;
        tensors.push_back({at + name + projection + ".bias", &bias});
      };
      add(".gate_proj", expert.gate, expert.gate_bias);
      add(".up_proj", expert.up, expert.up_bias);
      add(".down_proj", expert.down, expert.down_bias);
    };
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      add_expert("mlp.experts." + std::to_string(e), layer.experts[e]);
    }
    if (!layer.shared.gate.empty()) {
      add_expert("mlp.shared_experts", layer.shared);
    }
  }
  tensors.push_back({"model.norm.weight", &weights.final_norm});
  if (!weights.head.empty()) {
    tensors.push_back({"lm_head.weight", &weights.head});
  }
  return tensors;
}

void FillByFormula(ReferenceWeights& weights) {
  uint64_t number = 0;
  for (const NamedWeights& tensor : TensorsOf(weights)) {
    const bool is_norm = tensor.name.ends_with("norm.weight");
    uint64_t element = number << 32;
    for (double& value : *tensor.values) {
      const double s =
          std::ldexp(static_cast<double>(SplitMix64(element) >> 11), -52) - 1;
      value = is_norm ? 1 + s / 4 : s / 2;
      ++element;
    }
    ++number;
  }
}

std::vector<int64_t> TokensByFormula(uint64_t seed, int64_t count,
                                     int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = SplitMix64((seed << 32) + static_cast<uint64_t>(i));
    tokens.push_back(
        static_cast<int64_t>(number % static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

namespace {

using plain::Numbers;

// The intermediate results of a layer.
struct LayerPass {
  plain::Counts seen;  // The number of keys of each token.
  // The inputs of the heads' norms, or of those of latent vectors.
  Numbers query_input, key_input;
  Numbers query_latent, kv_latent;  // Normalised.
  Numbers input, normalised, query, key, value, attended;
  Numbers attention_output, mlp_output;  // The inputs of the outputs' norms.
  Numbers middle, middle_normalised, gate, up, product;
  // For a mixture, by token: the logits and scores of all experts, and the
  // weights and activations of the token's experts.
  struct Routed {
    Numbers logits, scores, weights;
    std::vector<size_t> experts;
    std::vector<Numbers> gates, ups, products, outputs;
  };
  std::vector<Routed> routed;
};

double SumOf(const Numbers& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum;
}

double LogSumOf(const Numbers& x) {
  double sum = 0;
  for (const double value : x) sum += std::exp(value);
  return std::log(sum);
}

void AddTo(Numbers& x, const Numbers& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

Numbers ZerosLike(const Numbers& x) { return Numbers(x.size()); }

// Add the bias to every row of x, and the rows of dx to the bias's gradient.
void AddBias(const Numbers& bias, Numbers& x) {
  for (size_t i = 0; !bias.empty() && i < x.size(); ++i) {
    x[i] += bias[i % bias.size()];
  }
}
void AddRows(const Numbers& dx, Numbers& dbias) {
  for (size_t i = 0; !dbias.empty() && i < dx.size(); ++i) {
    dbias[i % dbias.size()] += dx[i];
  }
}

// The forward of rows through an MLP.
Numbers MlpOf(GluKind kind, const ReferenceExpert& w, const Numbers& x,
              size_t width, Numbers& gate, Numbers& up, Numbers& product) {
  gate = plain::Linear(x, w.gate, width);
  up = plain::Linear(x, w.up, width);
  AddBias(w.gate_bias, gate);
  AddBias(w.up_bias, up);
  product = plain::Glu(kind, gate, up);
  Numbers y = plain::Linear(product, w.down, w.down.size() / width);
  AddBias(w.down_bias, y);
  return y;
}

// The backward. Adds to dx and to the gradients of the weights.
void MlpBackward(GluKind kind, const Numbers& dy, const ReferenceExpert& w,
                 const Numbers& x, size_t width, const Numbers& gate,
                 const Numbers& up, const Numbers& product, Numbers& dx,
                 ReferenceExpert& gradients) {
  Numbers dproduct(product.size()), dgate(gate.size()), dup(up.size());
  plain::LinearBackward(dy, product, w.down, w.down.size() / width, dproduct,
                        gradients.down);
  AddRows(dy, gradients.down_bias);
  plain::GluBackward(kind, dproduct, gate, up, dgate, dup);
  plain::LinearBackward(dgate, x, w.gate, width, dx, gradients.gate);
  plain::LinearBackward(dup, x, w.up, width, dx, gradients.up);
  AddRows(dgate, gradients.gate_bias);
  AddRows(dup, gradients.up_bias);
}

class Model {
 public:
  Model(const model_files::ModelConfig& model, const ReferenceWeights& weights,
        const ReferenceBatch& batch)
      : model_(model),
        weights_(weights),
        batch_(batch),
        width_(static_cast<size_t>(model.hidden)),
        vocabulary_(static_cast<size_t>(model.vocabulary)),
        heads_{batch.sequences,
               batch.length,
               static_cast<size_t>(model.heads),
               static_cast<size_t>(model.kv_heads),
               static_cast<size_t>(model.head_size),
               std::pow(model.score_scalar > 0
                            ? model.score_scalar
                            : static_cast<double>(model.head_size),
                        -0.5) *
                   LatentScale(model),
               model.attention_cap,
               static_cast<size_t>(IsLatent() ? model.latent.value
                                              : model.head_size),
               static_cast<size_t>(model.latent.nope),
               static_cast<size_t>(IsLatent() ? model.latent.rope
                                              : model.head_size),
               IsLatent() && model.latent.interleaved} {}

  void Forward() {
    Numbers x;
    for (size_t t = 0; t < tokens(); ++t) {
      const double* row = &weights_.embedding[InputOf(t) * width_];
      x.insert(x.end(), row, row + width_);
    }
    for (double& value : x) value *= EmbeddingFactor();
    for (const ReferenceLayer& layer : weights_.layers) {
      x = ForwardLayer(layer, std::move(x));
    }
    last_ = std::move(x);
    normalised_ =
        plain::RmsNorm(last_, weights_.final_norm, model_.norm_epsilon);
    logits_ = plain::Linear(normalised_, table(), width_);
    for (double& logit : logits_) {
      logit = plain::Capped(logit, model_.final_cap);
    }
  }

  double Loss() const {
    double sum = 0;
    for (size_t t = 0; t < tokens(); ++t) {
      if (IsMasked(t)) continue;
      const Numbers p = plain::Softmax(&logits_[t * vocabulary_], vocabulary_);
      sum -= std::log(p[TargetOf(t)]);
    }
    return sum / targets();
  }

  // The loss with the terms of the batch.
  double Objective() const {
    double terms = 0, router_terms = 0;
    for (size_t t = 0; t < tokens(); ++t) {
      if (IsMasked(t)) continue;
      const double* const row = &logits_[t * vocabulary_];
      const double log_sum = LogSum(t);
      double mean = 0;
      for (size_t v = 0; v < vocabulary_; ++v) {
        mean += row[v] / static_cast<double>(vocabulary_);
      }
      terms += batch_.label_smoothing * (row[TargetOf(t)] - mean) +
               batch_.z_loss * log_sum * log_sum;
    }
    for (size_t l = 0; l < passes_.size(); ++l) router_terms += RouterTerms(l);
    return Loss() + terms / targets() +
           router_terms / static_cast<double>(tokens());
  }

  const Numbers& logits() const { return logits_; }
  const Numbers& max_scores() const { return max_scores_; }

  ReferenceWeights Backward() const {
    ReferenceWeights gradients = ReferenceZeros(model_);
    Numbers dx = BackwardHead(gradients);
    for (size_t l = weights_.layers.size(); l-- > 0;) {
      dx = BackwardLayer(weights_.layers[l], passes_[l], dx,
                         gradients.layers[l]);
    }
    for (size_t t = 0; t < tokens(); ++t) {
      for (size_t i = 0; i < width_; ++i) {
        gradients.embedding[InputOf(t) * width_ + i] +=
            EmbeddingFactor() * dx[t * width_ + i];
      }
    }
    return gradients;
  }

 private:
  bool IsLatent() const { return model_.latent.kv_rank > 0; }
  // The square of yarn's factor of scores.
  static double LatentScale(const model_files::ModelConfig& model) {
    if (model.rotary.scaling != RotaryScaling::kYarn) return 1;
    const double share = model.latent.score_mscale;
    return std::pow(1 + 0.1 * share * std::log(model.rotary.factor), 2);
  }
  double EmbeddingFactor() const {
    return model_.traits().scaled_embedding ? std::pow(width_, 0.5) : 1;
  }
  size_t tokens() const { return batch_.sequences * batch_.length; }
  bool IsMasked(size_t token) const {
    return !batch_.masked.empty() && batch_.masked[token];
  }
  // The number of tokens that have a target; 1 if there are none.
  double targets() const {
    double count = 0;
    for (size_t t = 0; t < tokens(); ++t) count += IsMasked(t) ? 0 : 1;
    return std::max(count, 1.0);
  }
  size_t InputOf(size_t token) const {
    const size_t sequence = token / batch_.length;
    return static_cast<size_t>(batch_.tokens[token + sequence]);
  }
  size_t TargetOf(size_t token) const {
    const size_t sequence = token / batch_.length;
    return static_cast<size_t>(batch_.tokens[token + sequence + 1]);
  }
  // The logarithm of the sum of exponentials of a token's logits.
  double LogSum(size_t token) const {
    const double* const row = &logits_[token * vocabulary_];
    const double largest = *std::max_element(row, row + vocabulary_);
    double sum = 0;
    for (size_t v = 0; v < vocabulary_; ++v) sum += std::exp(row[v] - largest);
    return largest + std::log(sum);
  }
  // The number of keys of each token: back to the first token of its sequence
  // or document, limited by the window (0: no window).
  plain::Counts SeenIn(size_t window) const {
    plain::Counts seen;
    for (size_t t = 0; t < tokens(); ++t) {
      const size_t own = t % batch_.length;
      size_t count = 1;
      while (count <= own && (window == 0 || count < window)) {
        const auto before = static_cast<int64_t>(InputOf(t - count));
        if (batch_.document_end == before) break;
        ++count;
      }
      seen.push_back(count);
    }
    return seen;
  }
  const Numbers& table() const {
    return model_.tied_embeddings ? weights_.embedding : weights_.head;
  }

  // The norm of x, or x itself without a weight.
  Numbers NormOf(const Numbers& weight, const Numbers& x) const {
    return weight.empty() ? x : plain::RmsNorm(x, weight, model_.norm_epsilon);
  }
  // Returns the gradient of the norm's input, and adds to that of its weight.
  Numbers NormBackward(const Numbers& dy, const Numbers& x,
                       const Numbers& weight, Numbers& dweight) const {
    if (weight.empty()) return dy;
    Numbers dx = ZerosLike(x);
    plain::RmsNormBackward(dy, x, weight, model_.norm_epsilon, dx, dweight);
    return dx;
  }
  const RotaryFrequencies* RotaryOf(const LayerPass& p) const {
    return model_.RotaryOf(&p - passes_.data());
  }
  void RotateHeads(const LayerPass& p, double direction, Numbers& query,
                   Numbers& key) const {
    const RotaryFrequencies* const rotary = RotaryOf(p);
    if (rotary == nullptr) return;
    plain::Rotate(heads_, heads_.heads, *rotary, direction, query);
    plain::Rotate(heads_, heads_.kv_heads, *rotary, direction, key);
  }

  void SetHeads(const ReferenceLayer& w, LayerPass& p) const {
    p.query = plain::Linear(p.normalised, w.query, width_);
    p.key = plain::Linear(p.normalised, w.key, width_);
    p.value = plain::Linear(p.normalised, w.value, width_);
    AddBias(w.query_bias, p.query);
    AddBias(w.key_bias, p.key);
    AddBias(w.value_bias, p.value);
    if (!model_.traits().qk_norm) return;
    p.query_input = std::move(p.query);
    p.key_input = std::move(p.key);
    p.query = plain::RmsNorm(p.query_input, w.query_norm, model_.norm_epsilon);
    p.key = plain::RmsNorm(p.key_input, w.key_norm, model_.norm_epsilon);
  }

  // The epsilon of the norms of latent vectors.
  static constexpr double kLatentEpsilon = 1e-6;

  void SetLatentHeads(const ReferenceLayer& w, LayerPass& p) const {
    const auto rank = static_cast<size_t>(model_.latent.kv_rank);
    const auto rope = static_cast<size_t>(model_.latent.rope);
    const auto nope = static_cast<size_t>(model_.latent.nope);
    if (w.query_down.empty()) {
      p.query = plain::Linear(p.normalised, w.query, width_);
    } else {
      p.query_input = plain::Linear(p.normalised, w.query_down, width_);
      p.query_latent =
          plain::RmsNorm(p.query_input, w.query_norm, kLatentEpsilon);
      p.query = plain::Linear(p.query_latent, w.query, w.query_norm.size());
    }
    const Numbers down = plain::Linear(p.normalised, w.kv_down, width_);
    for (size_t t = 0; t < tokens(); ++t) {
      const double* const row = &down[t * (rank + rope)];
      p.key_input.insert(p.key_input.end(), row, row + rank);
    }
    p.kv_latent = plain::RmsNorm(p.key_input, w.key_norm, kLatentEpsilon);
    const Numbers up = plain::Linear(p.kv_latent, w.kv_up, rank);
    const size_t size = nope + heads_.value_size;
    for (size_t head = 0; head < tokens() * heads_.heads; ++head) {
      const double* const own = &up[head * size];
      const double* const shared =
          &down[head / heads_.heads * (rank + rope) + rank];
      p.key.insert(p.key.end(), own, own + nope);
      p.key.insert(p.key.end(), shared, shared + rope);
      p.value.insert(p.value.end(), own + nope, own + size);
    }
  }

  // Adds to dnormalised, from the gradients of heads that are not rotated.
  void BackwardLatentHeads(const ReferenceLayer& w, const LayerPass& p,
                           const Numbers& dquery, const Numbers& dkey,
                           const Numbers& dvalue, Numbers& dnormalised,
                           ReferenceLayer& gradients) const {
    const size_t rank = w.key_norm.size(), d = heads_.head_size;
    const auto rope = static_cast<size_t>(model_.latent.rope);
    const auto nope = static_cast<size_t>(model_.latent.nope);
    if (w.query_down.empty()) {
      plain::LinearBackward(dquery, p.normalised, w.query, width_, dnormalised,
                            gradients.query);
    } else {
      Numbers dlatent = ZerosLike(p.query_latent),
              dinput = ZerosLike(p.query_input);
      plain::LinearBackward(dquery, p.query_latent, w.query,
                            w.query_norm.size(), dlatent, gradients.query);
      plain::RmsNormBackward(dlatent, p.query_input, w.query_norm,
                             kLatentEpsilon, dinput, gradients.query_norm);
      plain::LinearBackward(dinput, p.normalised, w.query_down, width_,
                            dnormalised, gradients.query_down);
    }
    Numbers dup, dropes(tokens() * rope), ddown;
    for (size_t head = 0; head < tokens() * heads_.heads; ++head) {
      const double* const key = &dkey[head * d];
      const double* const value = &dvalue[head * heads_.value_size];
      dup.insert(dup.end(), key, key + nope);
      dup.insert(dup.end(), value, value + heads_.value_size);
      for (size_t i = 0; i < rope; ++i) {
        dropes[head / heads_.heads * rope + i] += key[nope + i];
      }
    }
    Numbers dlatent = ZerosLike(p.kv_latent), dinput = ZerosLike(p.key_input);
    plain::LinearBackward(dup, p.kv_latent, w.kv_up, rank, dlatent,
                          gradients.kv_up);
    plain::RmsNormBackward(dlatent, p.key_input, w.key_norm, kLatentEpsilon,
                           dinput, gradients.key_norm);
    for (size_t t = 0; t < tokens(); ++t) {
      ddown.insert(ddown.end(), &dinput[t * rank], &dinput[t * rank] + rank);
      ddown.insert(ddown.end(), &dropes[t * rope], &dropes[t * rope] + rope);
    }
    plain::LinearBackward(ddown, p.normalised, w.kv_down, width_, dnormalised,
                          gradients.kv_down);
  }

  // m = x + Wo attention(norm(x)); y = m + Wdown glu(norm(m)), where either
  // input or output of attention and MLP are normalised, or both.
  Numbers ForwardLayer(const ReferenceLayer& w, Numbers x) {
    LayerPass& p = passes_.emplace_back();
    p.seen = SeenIn(static_cast<size_t>(
        model_.WindowOf(static_cast<int64_t>(passes_.size()) - 1)));
    p.input = std::move(x);
    p.normalised = NormOf(w.attention_norm, p.input);
    IsLatent() ? SetLatentHeads(w, p) : SetHeads(w, p);
    RotateHeads(p, 1, p.query, p.key);
    p.attended =
        plain::Attend(heads_, p.seen, p.query, p.key, p.value, w.sinks);
    const Numbers scores = plain::MaxScores(heads_, p.seen, p.query, p.key);
    max_scores_.insert(max_scores_.end(), scores.begin(), scores.end());
    p.attention_output = plain::Linear(p.attended, w.output, Attended());
    AddBias(w.output_bias, p.attention_output);
    p.middle = NormOf(w.attention_output_norm, p.attention_output);
    AddTo(p.middle, p.input);
    p.middle_normalised = NormOf(w.mlp_norm, p.middle);
    p.mlp_output = w.experts.empty()
                       ? MlpOf(model_.traits().glu, w.mlp, p.middle_normalised,
                               width_, p.gate, p.up, p.product)
                       : ForwardMixture(w, p);
    Numbers y = NormOf(w.mlp_output_norm, p.mlp_output);
    AddTo(y, p.middle);
    return y;
  }

  // The sum of the outputs of a token's experts, each times its weight, and of
  // the shared expert.
  Numbers ForwardMixture(const ReferenceLayer& w, LayerPass& p) const {
    Numbers y(p.middle.size());
    if (!w.shared.gate.empty()) {
      y = MlpOf(model_.traits().glu, w.shared, p.middle_normalised, width_,
                p.gate, p.up, p.product);
    }
    for (size_t t = 0; t < tokens(); ++t) {
      LayerPass::Routed& r = p.routed.emplace_back();
      const Numbers x = RowOf(p.middle_normalised, t);
      Route(w, x, r);
      for (size_t i = 0; i < r.experts.size(); ++i) {
        const ReferenceExpert& expert = w.experts[r.experts[i]];
        r.outputs.push_back(MlpOf(model_.traits().glu, expert, x, width_,
                                  r.gates.emplace_back(), r.ups.emplace_back(),
                                  r.products.emplace_back()));
        for (size_t j = 0; j < width_; ++j) {
          y[t * width_ + j] += r.weights[i] * r.outputs[i][j];
        }
      }
    }
    return y;
  }

  // By which an expert is chosen.
  static double KeyOf(const ReferenceLayer& w, const LayerPass::Routed& r,
                      size_t expert) {
    return r.scores[expert] +
           (w.router_bias.empty() ? 0 : w.router_bias[expert]);
  }

  // True for the experts of the token's groups: those with the best expert, or
  // for sigmoids with the best sum of two experts.
  std::vector<bool> ChosenGroups(const ReferenceLayer& w,
                                 const LayerPass::Routed& r) const {
    const auto groups = static_cast<size_t>(model_.mixture.groups);
    const auto wanted = static_cast<size_t>(model_.mixture.groups_per_token);
    const size_t size = r.scores.size() / groups;
    std::vector<bool> allowed(r.scores.size(), groups == 1);
    if (groups == 1) return allowed;
    std::vector<std::pair<double, size_t>> sums;
    for (size_t g = 0; g < groups; ++g) {
      Numbers keys;
      for (size_t i = 0; i < size; ++i)
        keys.push_back(-KeyOf(w, r, g * size + i));
      std::sort(keys.begin(), keys.end());
      sums.push_back(
          {model_.traits().mixture.sigmoid ? keys[0] + keys[1] : keys[0], g});
    }
    std::sort(sums.begin(), sums.end());
    for (size_t i = 0; i < wanted; ++i) {
      for (size_t e = 0; e < size; ++e)
        allowed[sums[i].second * size + e] = true;
    }
    return allowed;
  }

  void Route(const ReferenceLayer& w, const Numbers& x,
             LayerPass::Routed& r) const {
    const model_files::MixtureConfig& mixture = model_.mixture;
    r.logits = plain::Linear(x, w.router, width_);
    AddBias(w.router_logit_bias, r.logits);
    r.scores = plain::Softmax(r.logits.data(), r.logits.size());
    for (size_t e = 0; model_.traits().mixture.sigmoid && e < r.logits.size();
         ++e) {
      r.scores[e] = 1 / (1 + std::exp(-r.logits[e]));
    }
    const std::vector<bool> allowed = ChosenGroups(w, r);
    double sum = 0;
    for (int64_t i = 0; i < mixture.per_token; ++i) {
      // The best of the remaining experts.
      size_t best = r.scores.size();
      double best_key = 0;
      for (size_t e = 0; e < r.scores.size(); ++e) {
        if (std::find(r.experts.begin(), r.experts.end(), e) !=
            r.experts.end()) {
          continue;
        }
        if (!allowed[e]) continue;
        const double key = KeyOf(w, r, e);
        if (best == r.scores.size() || key > best_key) best = e, best_key = key;
      }
      r.experts.push_back(best);
      sum += r.scores[best];
    }
    for (const size_t e : r.experts) {
      r.weights.push_back(mixture.scale * r.scores[e] /
                          (mixture.normalise ? sum : 1));
    }
  }

  // The factors of the balance term for a token's sequence: each expert's share
  // of the token's scores is multiplied with its factor. Scaled by the number
  // of all tokens.
  Numbers BalanceOf(const LayerPass& p, size_t token) const {
    const size_t first = token / batch_.length * batch_.length;
    Numbers counts(p.routed[token].scores.size());
    for (size_t t = first; t < first + batch_.length; ++t) {
      for (const size_t e : p.routed[t].experts) ++counts[e];
    }
    const double choices = SumOf(counts);
    for (double& count : counts) {
      count *= batch_.balance * static_cast<double>(counts.size()) / choices;
    }
    return counts;
  }

  // The loss terms of a layer's router, scaled by the number of all tokens.
  double RouterTerms(size_t layer) const {
    const LayerPass& p = passes_[layer];
    double terms = 0;
    for (size_t t = 0; t < p.routed.size(); ++t) {
      const LayerPass::Routed& r = p.routed[t];
      const Numbers balance = BalanceOf(p, t);
      for (size_t e = 0; e < r.scores.size(); ++e) {
        terms += balance[e] * r.scores[e] / SumOf(r.scores);
      }
      terms += batch_.router_z_loss * LogSumOf(r.logits) * LogSumOf(r.logits);
    }
    return terms;
  }

  Numbers RowOf(const Numbers& x, size_t token) const {
    const auto begin = x.begin() + static_cast<int64_t>(token * width_);
    return Numbers(begin, begin + static_cast<int64_t>(width_));
  }

  // The gradient of a softmax's cross-entropy is p, minus 1 at the target.
  // Label smoothing distributes this 1. The squared logarithm of the sum of
  // exponentials has the gradient 2 p times that logarithm.
  Numbers BackwardHead(ReferenceWeights& gradients) const {
    Numbers dlogits;
    for (size_t t = 0; t < tokens(); ++t) {
      Numbers p = plain::Softmax(&logits_[t * vocabulary_], vocabulary_);
      const double spread =
          batch_.label_smoothing / static_cast<double>(vocabulary_);
      for (double& value : p) {
        value += 2 * batch_.z_loss * LogSum(t) * value - spread;
      }
      p[TargetOf(t)] -= 1 - batch_.label_smoothing;
      for (size_t v = 0; v < vocabulary_; ++v) {
        p[v] *= plain::CapSlope(logits_[t * vocabulary_ + v], model_.final_cap);
      }
      for (double& value : p) value = IsMasked(t) ? 0 : value / targets();
      dlogits.insert(dlogits.end(), p.begin(), p.end());
    }
    Numbers dnormalised = ZerosLike(normalised_), dx = ZerosLike(last_);
    plain::LinearBackward(
        dlogits, normalised_, table(), width_, dnormalised,
        model_.tied_embeddings ? gradients.embedding : gradients.head);
    plain::RmsNormBackward(dnormalised, last_, weights_.final_norm,
                           model_.norm_epsilon, dx, gradients.final_norm);
    return dx;
  }

  Numbers BackwardLayer(const ReferenceLayer& w, const LayerPass& p,
                        const Numbers& dy, ReferenceLayer& gradients) const {
    const Numbers dmlp = NormBackward(dy, p.mlp_output, w.mlp_output_norm,
                                      gradients.mlp_output_norm);
    Numbers dmiddle = BackwardMlp(w, p, dmlp, gradients);
    AddTo(dmiddle, dy);
    const Numbers dattention =
        NormBackward(dmiddle, p.attention_output, w.attention_output_norm,
                     gradients.attention_output_norm);
    Numbers dx = BackwardAttention(w, p, dattention, gradients);
    AddTo(dx, dmiddle);
    return dx;
  }

  Numbers BackwardMlp(const ReferenceLayer& w, const LayerPass& p,
                      const Numbers& dy, ReferenceLayer& gradients) const {
    Numbers dnormalised = ZerosLike(p.middle);
    if (w.experts.empty()) {
      MlpBackward(model_.traits().glu, dy, w.mlp, p.middle_normalised, width_,
                  p.gate, p.up, p.product, dnormalised, gradients.mlp);
    } else {
      BackwardMixture(w, p, dy, dnormalised, gradients);
    }
    return NormBackward(dnormalised, p.middle, w.mlp_norm, gradients.mlp_norm);
  }

  void BackwardMixture(const ReferenceLayer& w, const LayerPass& p,
                       const Numbers& dy, Numbers& dx,
                       ReferenceLayer& gradients) const {
    if (!w.shared.gate.empty()) {
      MlpBackward(model_.traits().glu, dy, w.shared, p.middle_normalised,
                  width_, p.gate, p.up, p.product, dx, gradients.shared);
    }
    for (size_t t = 0; t < tokens(); ++t) {
      const LayerPass::Routed& r = p.routed[t];
      const Numbers x = RowOf(p.middle_normalised, t), dy_row = RowOf(dy, t);
      Numbers dx_row(width_), dweights;
      for (size_t i = 0; i < r.experts.size(); ++i) {
        const ReferenceExpert& expert = w.experts[r.experts[i]];
        ReferenceExpert& own = gradients.experts[r.experts[i]];
        Numbers doutput = dy_row;
        double dweight = 0;
        for (size_t j = 0; j < width_; ++j) {
          dweight += dy_row[j] * r.outputs[i][j];
          doutput[j] *= r.weights[i];
        }
        dweights.push_back(dweight);
        MlpBackward(model_.traits().glu, doutput, expert, x, width_, r.gates[i],
                    r.ups[i], r.products[i], dx_row, own);
      }
      const Numbers dlogits = RouterSlopes(p, t, dweights);
      AddRows(dlogits, gradients.router_logit_bias);
      plain::LinearBackward(dlogits, x, w.router, width_, dx_row,
                            gradients.router);
      for (size_t j = 0; j < width_; ++j) dx[t * width_ + j] += dx_row[j];
    }
  }

  // Computes the gradient of a token's logits from the gradient of its weights.
  Numbers RouterSlopes(const LayerPass& p, size_t token,
                       const Numbers& dweights) const {
    const model_files::MixtureConfig& mixture = model_.mixture;
    const LayerPass::Routed& r = p.routed[token];
    const auto all = static_cast<double>(tokens());
    Numbers dscores = ZerosLike(r.scores);
    double chosen = 0, mean = 0;
    for (size_t i = 0; i < r.experts.size(); ++i) {
      chosen += r.scores[r.experts[i]];
      mean += dweights[i] * r.scores[r.experts[i]];
    }
    for (size_t i = 0; i < r.experts.size(); ++i) {
      // The quotient rule.
      dscores[r.experts[i]] +=
          mixture.scale * (mixture.normalise
                               ? dweights[i] / chosen - mean / (chosen * chosen)
                               : dweights[i]);
    }
    const Numbers balance = BalanceOf(p, token);
    const double sum = SumOf(r.scores);
    double average = 0;
    for (size_t e = 0; e < balance.size(); ++e) {
      average += balance[e] * r.scores[e];
    }
    for (size_t e = 0; e < balance.size(); ++e) {
      dscores[e] += (balance[e] / sum - average / (sum * sum)) / all;
    }
    const double log_sum = LogSumOf(r.logits);
    double of_softmax = 0;
    for (size_t e = 0; e < balance.size(); ++e) {
      of_softmax += dscores[e] * r.scores[e];
    }
    Numbers dlogits;
    for (size_t e = 0; e < balance.size(); ++e) {
      const double slope = model_.traits().mixture.sigmoid
                               ? dscores[e] * (1 - r.scores[e])
                               : dscores[e] - of_softmax;
      dlogits.push_back(r.scores[e] * slope +
                        2 * batch_.router_z_loss * log_sum *
                            std::exp(r.logits[e] - log_sum) / all);
    }
    return dlogits;
  }

  Numbers BackwardAttention(const ReferenceLayer& w, const LayerPass& p,
                            const Numbers& dmiddle,
                            ReferenceLayer& gradients) const {
    Numbers dattended = ZerosLike(p.attended), dquery = ZerosLike(p.query),
            dkey = ZerosLike(p.key), dvalue = ZerosLike(p.value),
            dnormalised = ZerosLike(p.input);
    plain::LinearBackward(dmiddle, p.attended, w.output, Attended(), dattended,
                          gradients.output);
    plain::AttendBackward(heads_, p.seen, dattended, p.query, p.key, p.value,
                          w.sinks, dquery, dkey, dvalue, gradients.sinks);
    RotateHeads(p, -1, dquery, dkey);
    if (IsLatent()) {
      BackwardLatentHeads(w, p, dquery, dkey, dvalue, dnormalised, gradients);
      return NormBackward(dnormalised, p.input, w.attention_norm,
                          gradients.attention_norm);
    }
    if (model_.traits().qk_norm) {
      Numbers dinput = ZerosLike(dquery);
      plain::RmsNormBackward(dquery, p.query_input, w.query_norm,
                             model_.norm_epsilon, dinput, gradients.query_norm);
      dquery = std::move(dinput);
      dinput = ZerosLike(dkey);
      plain::RmsNormBackward(dkey, p.key_input, w.key_norm, model_.norm_epsilon,
                             dinput, gradients.key_norm);
      dkey = std::move(dinput);
    }
    AddRows(dquery, gradients.query_bias);
    AddRows(dkey, gradients.key_bias);
    AddRows(dvalue, gradients.value_bias);
    AddRows(dmiddle, gradients.output_bias);
    plain::LinearBackward(dquery, p.normalised, w.query, width_, dnormalised,
                          gradients.query);
    plain::LinearBackward(dkey, p.normalised, w.key, width_, dnormalised,
                          gradients.key);
    plain::LinearBackward(dvalue, p.normalised, w.value, width_, dnormalised,
                          gradients.value);
    return NormBackward(dnormalised, p.input, w.attention_norm,
                        gradients.attention_norm);
  }

  size_t Attended() const { return heads_.heads * heads_.value_size; }
  const model_files::ModelConfig& model_;
  const ReferenceWeights& weights_;
  const ReferenceBatch& batch_;
  const size_t width_;
  const size_t vocabulary_;
  const plain::HeadSizes heads_;
  std::vector<LayerPass> passes_;
  Numbers last_, normalised_, logits_;
  Numbers max_scores_;  // [layers, heads]
};

}  // namespace

ReferencePass RunReference(const model_files::ModelConfig& model,
                           const ReferenceWeights& weights,
                           const ReferenceBatch& batch) {
  Model run(model, weights, batch);
  run.Forward();
  return {run.logits(), run.Loss(), run.max_scores(), run.Backward()};
}

double ReferenceLoss(const model_files::ModelConfig& model,
                     const ReferenceWeights& weights,
                     const ReferenceBatch& batch) {
  Model run(model, weights, batch);
  run.Forward();
  return run.Objective();
}

}  // namespace tessera::train
