// The choice of experts for tokens (Shazeer et al., arXiv 1701.06538; the
// sigmoid and its bias: DeepSeek-V3, arXiv 2412.19437, section 2.1.2; groups:
// DeepSeek-V2, arXiv 2405.04434, section 2.2.2).
//
//   ops.Run(op::Route{{.per_token = 2}, logits, bias, weights, experts});
//   ops.Run(op::GroupByExpert{.experts = experts, .loads = loads,
//                             .slots = slots, .tokens = tokens});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ROUTER_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ROUTER_H_

#include <cstdint>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

enum class RouterScore {
  kSoftmax,  // Over all experts.
  kSigmoid,  // Of each expert by itself.
};

inline constexpr int64_t kMostRouterGroups = 64;

struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  int64_t per_token = 1;  // Experts of a token, at least 1.
  bool normalise = true;  // The weights of a token add up to `scale`.
  double scale = 1;
  // The experts are divided into `groups` groups of neighbours, at most
  // kMostRouterGroups, and a token chooses experts of groups_per_token groups:
  // those with the largest sums of the group_terms (1 or 2) best experts.
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  int64_t group_terms = 1;

  friend bool operator==(const RouterOptions&, const RouterOptions&) = default;
};

namespace op {

// The experts of each token and their weights, from logits [tokens, experts]:
//   scores[t][e] = softmax or sigmoid of logits[t][e]
//   experts[t]   = the per_token experts with the largest scores[t][e] +
//                  bias[e], the largest first, of equal ones the first, among
//                  the experts of the token's groups
//   weights[t]   = scale * scores[t][experts[t]], with `normalise` divided by
//                  the sum of the scores of the token's experts
// `bias` is [experts] or [0] (none); weights are [tokens, per_token]; both are
// statistics; experts are i64 of the same shape. Logits that are NaN are chosen
// last.
struct Route {
  static constexpr std::string_view kName = "Route";
  RouterOptions options;
  ConstTensorView logits, bias;
  TensorView weights, experts;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(logits, bias, weights, experts); }
};

// Orders the choices of `experts`, i64 [tokens, per_token], by expert, and
// those of an expert by token, as rows: slots[r] = t * per_token + i for row r
// of the choice experts[t][i], and tokens[r] = t. An expert accepts its first
// `capacity` choices (negative: all); the others have no row. Rows without a
// choice have -1 in both lists.
//
//   padded   rows of expert e           number of rows
//   false    follow those of e - 1      tokens * per_token
//   true     begin at e * capacity      experts * capacity
//
// loads[s][e], i64 [sequences, experts], is the number of choices of expert e
// in sequence s, accepted or not; each sequence has equally many tokens. The
// capacity and its padding: GShard, arXiv 2006.16668, section 2.2. Internal on
// the CPU if an expert does not exist.
struct GroupByExpert {
  static constexpr std::string_view kName = "GroupByExpert";
  int64_t capacity = -1;
  bool padded = false;
  ConstTensorView experts;
  TensorView loads, slots, tokens;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(experts, loads, slots, tokens); }
};

// Sets logits_gradient [tokens, experts], of statistics, to the gradient of
//   sum of weights_gradient * weights
//       + sum of b[s][e] * p[t][e] + sum of z_loss * l[t]^2
// where p are the scores divided by their sum over all experts, l the logarithm
// of the sum of exponentials of a token's logits, s the token's sequence, and
//   b[s][e] = balance * experts * loads[s][e] / (choices[s] * length[s]),
//   choices[s] = sum over e of loads[s][e],  length[s] = choices[s] / per_token
// `loads` is i64 [sequences, experts], each sequence of equally many tokens, or
// [0, experts] (none). The choice of experts has no gradient.
struct RouteGradient {
  static constexpr std::string_view kName = "RouteGradient";
  RouterOptions options;
  ConstTensorView logits, experts, weights_gradient, loads;
  double balance = 0;
  double z_loss = 0;
  TensorView logits_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(logits, experts, weights_gradient, loads, logits_gradient);
  }
};

using Router = OperationList<Route, GroupByExpert, RouteGradient>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ROUTER_H_
