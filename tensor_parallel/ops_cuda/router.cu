// Kernels of Route, GroupByExpert, RouteGradient, ScaleRows and
// ScaleRowsGradient. A warp has a token, or a row; in GroupByExpert, where it
// has a sequence and an expert, and a block an expert, results are integers
// that do not depend on the order of threads.

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/row_block.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

template <typename S, typename Combine>
__device__ S WarpReduce(S value, const Combine& combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// 1 / x, rounded to nearest, which avoids the function call of a division on a
// GPU.
template <typename S>
__device__ S Reciprocal(S x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<S, float>) {
    return __frcp_rn(x);
  } else {
    return __drcp_rn(x);
  }
#else
  return S{1} / x;
#endif
}

struct RouterParameters : RouterOptions {
  int64_t experts = 0;

  __device__ bool sigmoid() const { return score == RouterScore::kSigmoid; }
};

// The scores of a token; for a softmax, before the division by their sum.
template <typename T>
struct TokenScores {
  using S = StatisticOf<T>;

  const T* logits;
  bool sigmoid;
  S largest;
  S sum;  // Of the scores of all experts.

  __device__ S Of(int64_t expert) const {
    const S logit = static_cast<S>(logits[expert]);
    return sigmoid ? Reciprocal(S{1} + Exp(-logit)) : Exp(logit - largest);
  }
  // d score / d logit.
  __device__ S Slope(S score) const {
    return sigmoid ? score * (S{1} - score) : score;
  }
};

// Must be called by all lanes of a warp.
template <typename T>
__device__ TokenScores<T> ScoresOf(const RouterParameters& router,
                                   const T* logits, int lane) {
  using S = StatisticOf<T>;
  TokenScores<T> scores = {logits, router.sigmoid(), kMinusInfinity<S>, S{0}};
  for (int64_t e = lane; e < router.experts; e += 32) {
    const S logit = static_cast<S>(logits[e]);
    if (logit > scores.largest) scores.largest = logit;
  }
  scores.largest = WarpReduce(scores.largest, MaxOf<S>());
  for (int64_t e = lane; e < router.experts; e += 32)
    scores.sum += scores.Of(e);
  scores.sum = WarpReduce(scores.sum, SumOf<S>());
  return scores;
}

// An expert and the number by which it is compared.
template <typename S>
struct Candidate {
  S key;
  int64_t expert;  // Negative: none.
};

// True if `a` comes before `b`.
template <typename S>
__device__ bool Leads(const Candidate<S>& a, const Candidate<S>& b) {
  if (a.expert < 0 || b.expert < 0) return b.expert < 0 && a.expert >= 0;
  return a.key > b.key || (a.key == b.key && a.expert < b.expert);
}

// The best candidate of a warp. Must be called by all lanes.
template <typename S>
__device__ Candidate<S> BestOfWarp(Candidate<S> best) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate<S> other = {
        __shfl_xor_sync(kAllLanes, best.key, distance),
        __shfl_xor_sync(kAllLanes, best.expert, distance)};
    if (Leads(other, best)) best = other;
  }
  return best;
}

// The sum of the router's group_terms largest keys of a group. Must be called
// by all lanes.
template <typename S, typename KeyOf>
__device__ S GroupScore(const RouterParameters& router, int64_t group,
                        const KeyOf& key_of, int lane) {
  const int64_t size = router.experts / router.groups;
  S first = kMinusInfinity<S>, second = kMinusInfinity<S>;
  for (int64_t e = group * size + lane; e < (group + 1) * size; e += 32) {
    const S key = key_of(e);
    if (key > first) {
      second = first;
      first = key;
    } else if (key > second) {
      second = key;
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const S other_first = __shfl_xor_sync(kAllLanes, first, distance);
    const S other_second = __shfl_xor_sync(kAllLanes, second, distance);
    const S lower = first < other_first ? first : other_first;
    if (other_first > first) first = other_first;
    if (other_second > second) second = other_second;
    if (lower > second) second = lower;
  }
  return router.group_terms == 1 ? first : first + second;
}

// The groups among whose experts a token chooses, one bit each. A lane has the
// scores of the groups of its number and of that plus 32. Must be called by all
// lanes.
template <typename S, typename KeyOf>
__device__ uint64_t ChosenGroups(const RouterParameters& router,
                                 const KeyOf& key_of, int lane) {
  if (router.groups == 1) return 1;
  S low = kMinusInfinity<S>, high = kMinusInfinity<S>;
  for (int64_t group = 0; group < router.groups; ++group) {
    const S score = GroupScore<S>(router, group, key_of, lane);
    if (group == lane) low = score;
    if (group == lane + 32) high = score;
  }
  uint64_t chosen = 0;
  for (int64_t i = 0; i < router.groups_per_token; ++i) {
    Candidate<S> best = {S{0}, -1};
    for (int64_t group = lane; group < router.groups; group += 32) {
      const Candidate<S> next = {group < 32 ? low : high, group};
      if ((chosen >> group & 1) == 0 && Leads(next, best)) best = next;
    }
    chosen |= uint64_t{1} << BestOfWarp(best).expert;
  }
  return chosen;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    RouteKernel(RouterParameters router, int64_t tokens,
                const T* __restrict__ logits, int64_t stride,
                const StatisticOf<T>* __restrict__ bias,
                StatisticOf<T>* __restrict__ weights,
                int64_t* __restrict__ experts) {
  using S = StatisticOf<T>;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const TokenScores<T> scores = ScoresOf(router, logits + token * stride, lane);
  const S share = router.sigmoid() ? S{1} : Reciprocal(scores.sum);
  const auto key_of = [&](int64_t expert) {
    S key = static_cast<S>(scores.logits[expert]);
    if (bias != nullptr || router.group_terms > 1) {
      key = scores.Of(expert) * share + (bias == nullptr ? S{0} : bias[expert]);
    }
    return key != key ? kMinusInfinity<S> : key;
  };
  const uint64_t groups = ChosenGroups<S>(router, key_of, lane);
  const int64_t group_size = router.experts / router.groups;
  S sum = 0;
  Candidate<S> last = {S{0}, -1};
  for (int64_t i = 0; i < router.per_token; ++i) {
    Candidate<S> best = {S{0}, -1};
    for (int64_t e = lane; e < router.experts; e += 32) {
      const Candidate<S> next = {key_of(e), e};
      if (last.expert >= 0 && !Leads(last, next)) continue;
      if ((groups >> e / group_size & 1) == 0) continue;
      if (Leads(next, best)) best = next;
    }
    best = BestOfWarp(best);
    last = best;
    const S score = scores.Of(best.expert);
    sum += score;
    if (lane == 0) {
      experts[token * router.per_token + i] = best.expert;
      weights[token * router.per_token + i] = score;
    }
  }
  if (lane != 0) return;
  const S divisor =
      router.normalise ? sum : (router.sigmoid() ? S{1} : scores.sum);
  const S inverse = Reciprocal(divisor);
  const S factor = static_cast<S>(router.scale) * inverse;
  for (int64_t i = 0; i < router.per_token; ++i) {
    weights[token * router.per_token + i] *= factor;
  }
}

// The gradient of a token's balance term with respect to its scores.
template <typename S>
struct Balance {
  const int64_t* loads = nullptr;  // [experts], of the token's sequence.
  S of_load = 0;                   // The slope of a share, for each choice.
  S average = 0;                   // The mean slope, weighted by shares.
  S of_sum = 0;                    // 1 / the sum of the scores.

  __device__ S Slope(int64_t expert) const {
    return (of_load * static_cast<S>(loads[expert]) - average) * of_sum;
  }
};

// Must be called by all lanes of a warp.
template <typename T, typename S = StatisticOf<T>>
__device__ Balance<S> BalanceOf(const RouterParameters& router,
                                const TokenScores<T>& scores,
                                const int64_t* loads, double factor, int lane) {
  S choices = 0;
  for (int64_t e = lane; e < router.experts; e += 32) {
    choices += static_cast<S>(loads[e]);
  }
  const S of_choices = Reciprocal(WarpReduce(choices, SumOf<S>()));
  const auto terms = static_cast<double>(router.experts * router.per_token);
  Balance<S> balance = {
      .loads = loads,
      .of_load = static_cast<S>(factor * terms) * of_choices * of_choices,
      .of_sum = Reciprocal(scores.sum)};
  for (int64_t e = lane; e < router.experts; e += 32) {
    balance.average += balance.of_load * static_cast<S>(loads[e]) *
                       (scores.Of(e) * balance.of_sum);
  }
  balance.average = WarpReduce(balance.average, SumOf<S>());
  return balance;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    RouteGradientKernel(RouterParameters router, int64_t tokens,
                        const T* __restrict__ logits, int64_t stride,
                        const int64_t* __restrict__ experts,
                        const StatisticOf<T>* __restrict__ weights_gradient,
                        const int64_t* __restrict__ loads, int64_t length,
                        double balance, double z_loss,
                        StatisticOf<T>* __restrict__ logits_gradient) {
  using S = StatisticOf<T>;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t k = router.per_token;
  const TokenScores<T> scores = ScoresOf(router, logits + token * stride, lane);
  const int64_t* const chosen = experts + token * k;
  const S* const g = weights_gradient + token * k;
  // With weights w = scale * score / divisor: d/dscore of the sum of g * w.
  S sum = 0, products = 0;
  for (int64_t i = 0; i < k; ++i) {
    const S score = scores.Of(chosen[i]);
    sum += score;
    products += g[i] * score;
  }
  const S divisor =
      router.normalise ? sum : (router.sigmoid() ? S{1} : scores.sum);
  const S inverse = Reciprocal(divisor);
  const S factor = static_cast<S>(router.scale) * inverse;
  const S mean = products * inverse;
  const S of_all =
      !router.normalise && !router.sigmoid() ? -mean * factor : S{0};
  Balance<S> balance_of_token;
  if (loads != nullptr) {
    balance_of_token = BalanceOf(
        router, scores, loads + token / length * router.experts, balance, lane);
  }
  S log_sum_exp = 0;
  if (z_loss != 0) {
    S exponentials = 0;
    for (int64_t e = lane; e < router.experts; e += 32) {
      exponentials += Exp(static_cast<S>(scores.logits[e]) - scores.largest);
    }
    exponentials = WarpReduce(exponentials, SumOf<S>());
    log_sum_exp = Log(exponentials) + scores.largest;
  }
  const S z = static_cast<S>(2 * z_loss) * log_sum_exp;
  for (int64_t e = lane; e < router.experts; e += 32) {
    S of_score = of_all;
    for (int64_t i = 0; i < k; ++i) {
      if (chosen[i] == e) {
        of_score += factor * (router.normalise ? g[i] - mean : g[i]);
      }
    }
    if (loads != nullptr) of_score += balance_of_token.Slope(e);
    S result = of_score * scores.Slope(scores.Of(e));
    if (z_loss != 0) {
      result += z * Exp(static_cast<S>(scores.logits[e]) - log_sum_exp);
    }
    logits_gradient[token * router.experts + e] = result;
  }
}

// loads[s][e] = the number of the `choices` choices of sequence s that are e.
__global__ void __launch_bounds__(kThreads, 1)
    CountChoicesKernel(int64_t sequences, int64_t experts, int64_t choices,
                       const int64_t* __restrict__ chosen,
                       int64_t* __restrict__ loads) {
  const int64_t at = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (at >= sequences * experts) return;
  const int64_t* const of_sequence = chosen + at / experts * choices;
  const int64_t expert = at % experts;
  int64_t count = 0;
  for (int64_t i = threadIdx.x % 32; i < choices; i += 32) {
    if (of_sequence[i] == expert) ++count;
  }
  count = WarpReduce(count, SumOf<int64_t>());
  if (threadIdx.x % 32 == 0) loads[at] = count;
}

// GroupByExpert as a kernel uses it; without a limit the capacity is the number
// of choices.
struct Grouping {
  int64_t capacity, choices, per_token, experts, sequences, rows;
  bool padded;
};

// Returns the sum of `rows` over the block's threads before this one, and sets
// `total` to the sum over all threads. `slots` is shared memory for kWarps
// values. Must be called by all threads.
__device__ int64_t RowsBefore(int64_t rows, int64_t* slots, int64_t& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t scanned = rows;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, scanned, distance);
    if (lane >= distance) scanned += other;
  }
  __syncthreads();  // The values of an earlier call have been read.
  if (lane == 31) slots[threadIdx.x / 32] = scanned;
  __syncthreads();
  int64_t before = scanned - rows;
  total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < static_cast<int>(threadIdx.x / 32)) before += slots[warp];
    total += slots[warp];
  }
  return before;
}

__global__ void __launch_bounds__(kThreads, 1)
    GroupByExpertKernel(Grouping g, const int64_t* __restrict__ chosen,
                        const int64_t* __restrict__ loads,
                        int64_t* __restrict__ slots,
                        int64_t* __restrict__ tokens) {
  constexpr int64_t kPerThread = 4;
  TESSERA_SHARED(int64_t, of_warps, kWarps);
  const int64_t expert = blockIdx.x;
  int64_t earlier = 0, first = expert * g.capacity;
  for (int64_t e = threadIdx.x; e < expert; e += kThreads) {
    int64_t load = 0;
    for (int64_t s = 0; s < g.sequences; ++s) load += loads[s * g.experts + e];
    earlier += load < g.capacity ? load : g.capacity;
  }
  int64_t total;
  RowsBefore(earlier, of_warps, total);
  if (!g.padded) first = total;
  const int64_t end = first + g.capacity;
  int64_t next = first;
  for (int64_t base = 0; base < g.choices && next < end;
       base += kThreads * kPerThread) {
    const int64_t begin = base + int64_t{threadIdx.x} * kPerThread;
    const auto is_mine = [&](int64_t i) {
      return i < g.choices && chosen[i] == expert;
    };
    int64_t mine = 0;
    for (int64_t i = begin; i < begin + kPerThread; ++i) mine += is_mine(i);
    int64_t row = next + RowsBefore(mine, of_warps, total);
    for (int64_t i = begin; i < begin + kPerThread && mine > 0; ++i) {
      if (!is_mine(i)) continue;
      if (row < end) {
        slots[row] = i;
        tokens[row] = i / g.per_token;
      }
      ++row;
    }
    next += total;
  }
  // Marks the rows without a choice.
  const int64_t last = g.padded ? end : expert == g.experts - 1 ? g.rows : 0;
  for (int64_t row = (next < end ? next : end) + threadIdx.x; row < last;
       row += kThreads) {
    slots[row] = -1;
    tokens[row] = -1;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    ScaleRowsKernel(int64_t rows, int64_t n,
                    const StatisticOf<T>* __restrict__ scales, const T* x,
                    int64_t x_stride, T* y, int64_t y_stride) {
  using S = StatisticOf<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const S scale = scales[row];
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
    y[row * y_stride + i] =
        static_cast<T>(static_cast<S>(x[row * x_stride + i]) * scale);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    ScaleRowsGradientKernel(int64_t rows, int64_t n, const T* gradient,
                            int64_t gradient_stride,
                            const StatisticOf<T>* __restrict__ scales,
                            const T* x, int64_t x_stride, T* x_gradient,
                            int64_t x_gradient_stride,
                            StatisticOf<T>* __restrict__ scales_gradient) {
  using S = StatisticOf<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const S scale = scales[row];
  S sum = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
    const S g = static_cast<S>(gradient[row * gradient_stride + i]);
    sum += g * static_cast<S>(x[row * x_stride + i]);
    x_gradient[row * x_gradient_stride + i] = static_cast<T>(g * scale);
  }
  sum = WarpReduce(sum, SumOf<S>());
  if (threadIdx.x % 32 == 0) scales_gradient[row] = sum;
}

unsigned BlocksOfWarps(int64_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::Route& call) {
  const int64_t tokens = call.logits.shape()[0];
  if (tokens == 0) return absl::OkStatus();
  return ForComputedType(
      call.logits.dtype(), [&]<typename T>(std::type_identity<T>) {
        using S = StatisticOf<T>;
        Launch(RouteKernel<T>, BlocksOfWarps(tokens), kThreads, 0, cuda.stream,
               RouterParameters{call.options, call.logits.shape()[1]}, tokens,
               DataOf<T>(call.logits), call.logits.strides()[0],
               call.bias.element_count() == 0 ? nullptr : DataOf<S>(call.bias),
               DataOf<S>(call.weights), DataOf<int64_t>(call.experts));
        return absl::OkStatus();
      });
}

absl::Status Run(CudaBackend& cuda, const op::GroupByExpert& call) {
  const int64_t choices = call.experts.element_count();
  const Grouping grouping = {
      .capacity = call.capacity < 0 ? choices : call.capacity,
      .choices = choices,
      .per_token = call.experts.shape()[1],
      .experts = call.loads.shape()[1],
      .sequences = call.loads.shape()[0],
      .rows = call.slots.element_count(),
      .padded = call.padded};
  if (grouping.experts == 0) return absl::OkStatus();
  if (grouping.sequences > 0) {
    Launch(CountChoicesKernel,
           BlocksOfWarps(grouping.sequences * grouping.experts), kThreads, 0,
           cuda.stream, grouping.sequences, grouping.experts,
           choices / grouping.sequences, DataOf<int64_t>(call.experts),
           DataOf<int64_t>(call.loads));
  }
  Launch(GroupByExpertKernel, static_cast<unsigned>(grouping.experts), kThreads,
         0, cuda.stream, grouping, DataOf<int64_t>(call.experts),
         DataOf<int64_t>(call.loads), DataOf<int64_t>(call.slots),
         DataOf<int64_t>(call.tokens));
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::RouteGradient& call) {
  const int64_t tokens = call.logits.shape()[0],
                sequences = call.loads.shape()[0];
  if (tokens == 0) return absl::OkStatus();
  return ForComputedType(call.logits.dtype(), [&]<typename T>(
                                                  std::type_identity<T>) {
    using S = StatisticOf<T>;
    Launch(RouteGradientKernel<T>, BlocksOfWarps(tokens), kThreads, 0,
           cuda.stream, RouterParameters{call.options, call.logits.shape()[1]},
           tokens, DataOf<T>(call.logits), call.logits.strides()[0],
           DataOf<int64_t>(call.experts), DataOf<S>(call.weights_gradient),
           sequences == 0 ? nullptr : DataOf<int64_t>(call.loads),
           sequences == 0 ? int64_t{1} : tokens / sequences, call.balance,
           call.z_loss, DataOf<S>(call.logits_gradient));
    return absl::OkStatus();
  });
}

absl::Status Run(CudaBackend& cuda, const op::ScaleRows& call) {
  const int64_t rows = call.x.shape()[0];
  if (rows == 0) return absl::OkStatus();
  return ForComputedType(
      call.x.dtype(), [&]<typename T>(std::type_identity<T>) {
        Launch(ScaleRowsKernel<T>, BlocksOfWarps(rows), kThreads, 0,
               cuda.stream, rows, call.x.shape()[1],
               DataOf<StatisticOf<T>>(call.scales), DataOf<T>(call.x),
               call.x.strides()[0], DataOf<T>(call.y), call.y.strides()[0]);
        return absl::OkStatus();
      });
}

absl::Status Run(CudaBackend& cuda, const op::ScaleRowsGradient& call) {
  const int64_t rows = call.gradient.shape()[0];
  if (rows == 0) return absl::OkStatus();
  return ForComputedType(
      call.gradient.dtype(), [&]<typename T>(std::type_identity<T>) {
        using S = StatisticOf<T>;
        Launch(ScaleRowsGradientKernel<T>, BlocksOfWarps(rows), kThreads, 0,
               cuda.stream, rows, call.gradient.shape()[1],
               DataOf<T>(call.gradient), call.gradient.strides()[0],
               DataOf<S>(call.scales), DataOf<T>(call.x), call.x.strides()[0],
               DataOf<T>(call.x_gradient), call.x_gradient.strides()[0],
               DataOf<S>(call.scales_gradient));
        return absl::OkStatus();
      });
}

void AddRouterKernels(CudaKernelTable& table) {
  table.Add<op::Route, op::GroupByExpert, op::RouteGradient, op::ScaleRows,
            op::ScaleRowsGradient>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
