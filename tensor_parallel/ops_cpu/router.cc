#include "tensor_parallel/ops_cpu/router.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {
namespace {

template <typename T>
using StatisticOf =
    std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
const T* DataOf(const ConstTensorView& view) {
  return reinterpret_cast<const T*>(view.data());
}
template <typename T>
T* DataOf(const TensorView& view) {
  return reinterpret_cast<T*>(view.data());
}

// The scores of a token: their sum over all experts is `sum`, after
// multiplication by exp(-largest) for a softmax.
template <typename S>
class Scores {
 public:
  Scores(RouterScore score, std::vector<S> logits)
      : score_(score), logits_(std::move(logits)), scores_(logits_.size()) {
    largest_ = -std::numeric_limits<S>::infinity();
    for (const S logit : logits_) largest_ = std::max(largest_, logit);
    for (size_t e = 0; e < logits_.size(); ++e) {
      scores_[e] = score_ == RouterScore::kSoftmax
                       ? std::exp(logits_[e] - largest_)
                       : 1 / (1 + std::exp(-logits_[e]));
      sum_ += scores_[e];
    }
  }

  size_t size() const { return logits_.size(); }
  S logit(size_t expert) const { return logits_[expert]; }
  // For comparisons; with a bias or sums of `scores` it is a probability.
  S key(size_t expert, const S* bias, bool scores) const {
    S key = logits_[expert];
    if (bias != nullptr || scores) {
      key = score_ == RouterScore::kSoftmax ? share(expert) : scores_[expert];
      if (bias != nullptr) key += bias[expert];
    }
    return std::isnan(key) ? -std::numeric_limits<S>::infinity() : key;
  }
  S score(size_t expert) const { return scores_[expert]; }
  // The factor of a score if weights are not normalised.
  S unit() const { return score_ == RouterScore::kSoftmax ? 1 / sum_ : S{1}; }
  // The share of an expert in the sum of the scores of all experts, and that
  // sum.
  S share(size_t expert) const { return scores_[expert] / sum_; }
  S sum() const { return sum_; }
  S LogSumExp() const {
    S sum = 0;
    for (const S logit : logits_) sum += std::exp(logit - largest_);
    return std::log(sum) + largest_;
  }
  S SoftmaxOf(size_t expert, S log_sum_exp) const {
    return std::exp(logits_[expert] - log_sum_exp);
  }
  // d score / d logit; for a softmax, without its division.
  S Slope(size_t expert) const {
    return score_ == RouterScore::kSoftmax
               ? scores_[expert]
               : scores_[expert] * (1 - scores_[expert]);
  }

 private:
  const RouterScore score_;
  const std::vector<S> logits_;
  std::vector<S> scores_;
  S largest_;
  S sum_ = 0;
};

template <typename T>
Scores<StatisticOf<T>> ScoresOf(RouterScore score,
                                const ConstTensorView& logits, int64_t token) {
  const T* const row = DataOf<T>(logits) + token * logits.strides()[0];
  return Scores<StatisticOf<T>>(
      score, std::vector<StatisticOf<T>>(row, row + logits.shape()[1]));
}

// The divisor of a token's weights, for example the sum of the scores of its
// experts.
template <typename S>
S DivisorOf(const RouterOptions& options, const Scores<S>& scores,
            const int64_t* experts) {
  if (!options.normalise) return 1 / scores.unit();
  S sum = 0;
  for (int64_t i = 0; i < options.per_token; ++i) {
    sum += scores.score(static_cast<size_t>(experts[i]));
  }
  return sum;
}

// Moves the `count` best of `order` to its front, the largest key first.
template <typename S>
void SelectBest(const std::vector<S>& keys, int64_t count,
                std::vector<int64_t>& order) {
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int64_t a, int64_t b) {
                      const S of_a = keys[static_cast<size_t>(a)];
                      const S of_b = keys[static_cast<size_t>(b)];
                      return of_a > of_b || (of_a == of_b && a < b);
                    });
}

// Sets the experts among which a token chooses.
template <typename S>
void SetCandidates(const RouterOptions& options, const std::vector<S>& keys,
                   std::vector<int64_t>& candidates) {
  const auto all = static_cast<int64_t>(keys.size());
  if (options.groups == 1) {
    candidates.resize(keys.size());
    std::iota(candidates.begin(), candidates.end(), 0);
    return;
  }
  const int64_t size = all / options.groups;
  std::vector<int64_t> groups(static_cast<size_t>(options.groups));
  std::iota(groups.begin(), groups.end(), 0);
  std::vector<S> sums(groups.size());
  std::vector<int64_t> members(static_cast<size_t>(size));
  for (size_t g = 0; g < sums.size(); ++g) {
    std::iota(members.begin(), members.end(), static_cast<int64_t>(g) * size);
    SelectBest(keys, options.group_terms, members);
    for (int64_t i = 0; i < options.group_terms; ++i) {
      sums[g] += keys[static_cast<size_t>(members[static_cast<size_t>(i)])];
    }
  }
  SelectBest(sums, options.groups_per_token, groups);
  candidates.clear();
  for (int64_t i = 0; i < options.groups_per_token; ++i) {
    const int64_t first = groups[static_cast<size_t>(i)] * size;
    for (int64_t e = first; e < first + size; ++e) candidates.push_back(e);
  }
}

template <typename T>
void RouteAs(const op::Route& call, IndexRange tokens) {
  using S = StatisticOf<T>;
  const RouterOptions& options = call.options;
  const int64_t k = options.per_token;
  const S* const biases =
      call.bias.element_count() == 0 ? nullptr : DataOf<S>(call.bias);
  std::vector<S> keys(static_cast<size_t>(call.logits.shape()[1]));
  std::vector<int64_t> order;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const Scores<S> scores = ScoresOf<T>(options.score, call.logits, t);
    for (size_t e = 0; e < keys.size(); ++e) {
      keys[e] = scores.key(e, biases, options.group_terms > 1);
    }
    SetCandidates(options, keys, order);
    SelectBest(keys, k, order);
    int64_t* const chosen = DataOf<int64_t>(call.experts) + t * k;
    std::copy_n(order.begin(), k, chosen);
    const S factor =
        static_cast<S>(options.scale) / DivisorOf(options, scores, chosen);
    for (int64_t i = 0; i < k; ++i) {
      DataOf<S>(call.weights)[t * k + i] =
          factor * scores.score(static_cast<size_t>(chosen[i]));
    }
  }
}

// Adds the gradient of the balance term of a token of `sequence`.
template <typename S>
void AddBalanceGradient(const op::RouteGradient& call, int64_t sequence,
                        const Scores<S>& scores, std::vector<S>& of_scores) {
  const size_t count = of_scores.size();
  const int64_t* const loads =
      DataOf<int64_t>(call.loads) + sequence * static_cast<int64_t>(count);
  const auto choices =
      static_cast<double>(std::accumulate(loads, loads + count, int64_t{0}));
  const double factor = call.balance *
                        static_cast<double>(static_cast<int64_t>(count) *
                                            call.options.per_token) /
                        (choices * choices);
  const auto slope = [&](size_t e) {
    return static_cast<S>(factor * static_cast<double>(loads[e]));
  };
  S average = 0;
  for (size_t e = 0; e < count; ++e) average += slope(e) * scores.share(e);
  for (size_t e = 0; e < count; ++e) {
    of_scores[e] += (slope(e) - average) / scores.sum();
  }
}

template <typename T>
void RouteGradientAs(const op::RouteGradient& call, IndexRange tokens) {
  using S = StatisticOf<T>;
  const RouterOptions& options = call.options;
  const int64_t k = options.per_token, count = call.logits.shape()[1];
  const int64_t sequences = call.loads.shape()[0];
  const int64_t length =
      sequences == 0 ? 1 : call.logits.shape()[0] / sequences;
  std::vector<S> of_scores(static_cast<size_t>(count));
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const Scores<S> scores = ScoresOf<T>(options.score, call.logits, t);
    const int64_t* const chosen = DataOf<int64_t>(call.experts) + t * k;
    const S* const g = DataOf<S>(call.weights_gradient) + t * k;
    // With weights w = scale * score / divisor: d/dscore of the sum of g * w.
    const S divisor = DivisorOf(options, scores, chosen);
    const S factor = static_cast<S>(options.scale) / divisor;
    S mean = 0;  // Of the g, weighted by the shares of the divisor.
    for (int64_t i = 0; i < k; ++i) {
      mean += g[i] * scores.score(static_cast<size_t>(chosen[i])) / divisor;
    }
    std::fill(of_scores.begin(), of_scores.end(), S{0});
    const bool divides_by_all =
        !options.normalise && options.score == RouterScore::kSoftmax;
    if (divides_by_all) {
      std::fill(of_scores.begin(), of_scores.end(), -mean * factor);
    }
    for (int64_t i = 0; i < k; ++i) {
      of_scores[static_cast<size_t>(chosen[i])] +=
          factor * (options.normalise ? g[i] - mean : g[i]);
    }
    if (sequences > 0) AddBalanceGradient(call, t / length, scores, of_scores);
    S* const result = DataOf<S>(call.logits_gradient) + t * count;
    for (int64_t e = 0; e < count; ++e) {
      const auto at = static_cast<size_t>(e);
      result[e] = of_scores[at] * scores.Slope(at);
    }
    if (call.z_loss == 0) continue;
    const S log_sum_exp = scores.LogSumExp();
    const S z = static_cast<S>(2 * call.z_loss) * log_sum_exp;
    for (int64_t e = 0; e < count; ++e) {
      result[e] += z * scores.SoftmaxOf(static_cast<size_t>(e), log_sum_exp);
    }
  }
}

// Calls run(std::type_identity<T>()) for the type T of `dtype`.
template <typename Run>
void ForType(DType dtype, const Run& run) {
  if (dtype == DType::kF64) return run(std::type_identity<double>());
  if (dtype == DType::kF32) return run(std::type_identity<float>());
  if (dtype == DType::kF16) return run(std::type_identity<F16>());
  run(std::type_identity<BF16>());
}

}  // namespace

void RouteTokens(const op::Route& call, IndexRange tokens) {
  ForType(call.logits.dtype(),
          [&]<typename T>(std::type_identity<T>) { RouteAs<T>(call, tokens); });
}

void RouteTokensGradient(const op::RouteGradient& call, IndexRange tokens) {
  ForType(call.logits.dtype(), [&]<typename T>(std::type_identity<T>) {
    RouteGradientAs<T>(call, tokens);
  });
}

absl::Status GroupRowsByExpert(const op::GroupByExpert& call) {
  const std::span experts(DataOf<int64_t>(call.experts),
                          static_cast<size_t>(call.experts.element_count()));
  const int64_t count = call.loads.shape()[1];
  const int64_t choices_of_sequence =
      call.experts.element_count() /
      std::max<int64_t>(call.loads.shape()[0], 1);
  int64_t* const loads = DataOf<int64_t>(call.loads);
  std::fill_n(loads, call.loads.element_count(), 0);
  std::vector<int64_t> accepted(static_cast<size_t>(count));
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    const int64_t expert = experts[slot];
    if (expert < 0 || expert >= count) {
      return absl::InternalError(
          absl::StrCat("the router chose expert ", expert, " of ", count));
    }
    ++loads[static_cast<int64_t>(slot) / choices_of_sequence * count + expert];
    ++accepted[static_cast<size_t>(expert)];
  }
  std::vector<int64_t> next(static_cast<size_t>(count)), end = next;
  int64_t first = 0;
  for (size_t e = 0; e < next.size(); ++e) {
    const int64_t rows =
        call.capacity < 0 ? accepted[e] : std::min(accepted[e], call.capacity);
    next[e] = first;
    end[e] = first + rows;
    first += call.padded ? call.capacity : rows;
  }
  int64_t* const slots = DataOf<int64_t>(call.slots);
  int64_t* const tokens = DataOf<int64_t>(call.tokens);
  std::fill_n(slots, call.slots.element_count(), -1);
  std::fill_n(tokens, call.tokens.element_count(), -1);
  const int64_t k = call.experts.shape()[1];
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    const auto expert = static_cast<size_t>(experts[slot]);
    if (next[expert] == end[expert]) continue;
    slots[next[expert]] = static_cast<int64_t>(slot);
    tokens[next[expert]++] = static_cast<int64_t>(slot) / k;
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
