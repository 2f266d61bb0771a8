#include <cmath>
#include <limits>

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/cross_entropy_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/exp-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

using Step = CrossEntropyJob::Step;

template <typename T>
StatisticOf<T> MaxOfRow(const T* row, int64_t n) {
  using S = StatisticOf<T>;
  constexpr S kLowest = -std::numeric_limits<S>::infinity();
  Block<S> largest = SetBlock(kLowest);
  ForEachBlock<T>(n, [&](int64_t j, auto left) HWY_ATTR {
    largest = Larger(First<S>(Load(row + j, left), left, kLowest), largest);
  });
  return Largest(largest);
}

template <typename T>
struct ExpTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    return First(ExpFor<T>(Load(row + j, left) - shift), left,
                 StatisticOf<T>{0});
  }
  const T* row;
  Block<StatisticOf<T>> shift;
};

// The target's gradient is computed from its original logit.
template <typename T>
void GradientOfRow(const CrossEntropyJob& job, int64_t i) {
  using S = StatisticOf<T>;
  const int64_t n = job.held.size();
  T* const row = job.result.row<T>(i);
  const S scale = static_cast<S>(job.scales[i]);
  const S one_over_sum = S{1} / job.sum.row<S>(0)[i];
  const Block<S> shift = SetBlock(job.largest.row<S>(0)[i]);
  const Block<S> factor = SetBlock(one_over_sum);
  const Block<S> scales = SetBlock(scale);
  const double log_sum = std::log(static_cast<double>(job.sum.row<S>(0)[i])) +
                         static_cast<double>(job.largest.row<S>(0)[i]);
  const double of_each =
      job.label_smoothing == 0
          ? 0
          : job.label_smoothing / static_cast<double>(job.vocabulary);
  // Without terms these are 1, 0 and 1, which give the bits of a gradient
  // without terms.
  const Block<S> share_factor = SetBlock(
      job.z_loss == 0 ? S{1} : static_cast<S>(1 + 2 * job.z_loss * log_sum));
  const Block<S> spread = SetBlock(static_cast<S>(of_each));
  const Block<S> own =
      SetBlock(static_cast<S>(1 - job.label_smoothing + of_each));
  const bool is_held = job.held.contains(job.targets[i]);
  const int64_t target = is_held ? job.targets[i] - job.held.begin : 0;
  const Block<S> one_over_cap =
      SetBlock(job.cap == 0 ? S{0} : static_cast<S>(1 / job.cap));
  // The slope of capped logits.
  const auto slope = [&](const Block<S>& logit) HWY_ATTR {
    const Block<S> one = SetBlock(S{1});
    const Block<S> share = logit * one_over_cap;
    return job.cap == 0 ? scales : scales * (one - share * share);
  };
  const Block<S> at_target = is_held ? Load(row + target, 1) : SetBlock(S{0});
  ForEachBlock<T>(n, [&](int64_t j, auto left) HWY_ATTR {
    const Block<S> logit = Load(row + j, left);
    const Block<S> share = ExpFor<T>(logit - shift) * factor;
    Store((share * share_factor - spread) * slope(logit), row + j, left);
  });
  if (is_held) {
    const Block<S> share = ExpFor<T>(at_target - shift) * factor;
    Store((share * share_factor - own) * slope(at_target), row + target, 1);
  }
}

template <typename T>
void RunCrossEntropyOf(const CrossEntropyJob& job) {
  using S = StatisticOf<T>;
  const int64_t n = job.held.size();
  for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
    if (job.step == Step::kGradient) {
      if (job.scales[i] == 0 || job.targets[i] < 0) {
        for (int64_t j = 0; j < n; ++j) job.result.row<T>(i)[j] = T{};
      } else {
        GradientOfRow<T>(job, i);
      }
      continue;
    }
    const T* const row = job.logits.row<T>(i);
    S& result = job.result.row<S>(0)[i];
    if (job.step == Step::kMax) {
      result = MaxOfRow(row, n);
    } else if (job.step == Step::kSumExp) {
      result = SumOf<T>(ExpTerm<T>{row, SetBlock(job.largest.row<S>(0)[i])}, n);
    } else {
      result = job.held.contains(job.targets[i])
                   ? static_cast<S>(row[job.targets[i] - job.held.begin])
                   : S{0};
    }
  }
}

void RunCrossEntropyHere(const CrossEntropyJob& job) {
  if (job.dtype == DType::kF64) return RunCrossEntropyOf<double>(job);
  if (job.dtype == DType::kF32) return RunCrossEntropyOf<float>(job);
  if (job.dtype == DType::kF16) return RunCrossEntropyOf<F16>(job);
  return RunCrossEntropyOf<BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunCrossEntropyHere);

void RunCrossEntropy(const CrossEntropyJob& job) {
  HWY_DYNAMIC_DISPATCH(RunCrossEntropyHere)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
