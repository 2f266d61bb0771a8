#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype/dtype.h"
#include "base/highway_targets.h"
#include "offload/optimizer/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/step_kernel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "offload/optimizer/floats-inl.h"
#include "offload/optimizer/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

// The update of an element by each rule, and the sweep over a tile. Products
// and sums are separate instructions, and divisions and roots follow IEEE 754,
// so results are bit-identical on every instruction set.

// Returns average * beta + value * fresh.
template <class D, class V = hn::Vec<D>, typename S = hn::TFromD<D>>
HWY_INLINE V Average(D d, V average, S beta, V value, S fresh) {
  return Canonical(d, hn::Add(hn::Mul(average, hn::Set(d, beta)),
                              hn::Mul(value, hn::Set(d, fresh))));
}

// Updates the moments and returns the direction of a step, which is multiplied
// by `rate`.
template <StepRule rule>
struct Direction {  // kMomentum and kNesterov.
  static constexpr int kMoments = 1;
  template <class D, class V, typename S>
  static HWY_INLINE V Of(D d, const Numbers<S>& n, V g, V& m, V&) {
    m = Average(d, m, n.beta1, g, n.fresh1);
    if constexpr (rule == StepRule::kMomentum) return m;
    return hn::Add(g, hn::Mul(m, hn::Set(d, n.beta1)));
  }
};
template <>
struct Direction<StepRule::kPlain> {
  static constexpr int kMoments = 0;
  template <class D, class V, typename S>
  static HWY_INLINE V Of(D, const Numbers<S>&, V g, V&, V&) {
    return g;
  }
};
template <>
struct Direction<StepRule::kAdamW> {
  static constexpr int kMoments = 2;
  template <class D, class V, typename S>
  static HWY_INLINE V Of(D d, const Numbers<S>& n, V g, V& m, V& v) {
    m = Average(d, m, n.beta1, g, n.fresh1);
    const auto square = hn::Mul(hn::Mul(g, hn::Set(d, n.fresh2)), g);
    v = Canonical(d, hn::Add(hn::Mul(v, hn::Set(d, n.beta2)), square));
    const auto root = hn::Mul(hn::Sqrt(v), hn::Set(d, n.root_correction));
    return hn::Div(m, hn::Add(root, hn::Set(d, n.epsilon)));
  }
};

template <>
struct Direction<StepRule::kLion> {
  static constexpr int kMoments = 1;
  template <class D, class V, typename S>
  static HWY_INLINE V Of(D d, const Numbers<S>& n, V g, V& m, V&) {
    const auto mean = Average(d, m, n.beta1, g, n.fresh1);
    m = Average(d, m, n.beta2, g, n.fresh2);
    // The sign; a NaN or 0 stays as it is.
    return hn::IfThenElse(hn::Gt(hn::Abs(mean), hn::Zero(d)),
                          hn::CopySign(hn::Set(d, S{1}), mean), mean);
  }
};

template <typename S>
struct Tile {
  S* p;
  const S* g;
  S* m;
  S* v;
};

template <StepRule rule, bool kDecayInGradient, typename S>
void Sweep(const Numbers<S>& numbers, const Tile<S>& tile, size_t count) {
  using Rule = Direction<rule>;
  const Numbers<S> n = numbers;
  const Tile<S> t = tile;
  ForEach<S>(count, [=](auto d, size_t i) HWY_ATTR {
    const auto p = hn::LoadU(d, t.p + i);
    auto g = hn::Mul(hn::LoadU(d, t.g + i), hn::Set(d, n.gradient_scale));
    if constexpr (kDecayInGradient) {
      g = hn::Add(g, hn::Mul(p, hn::Set(d, n.decay_in_gradient)));
    }
    auto m = hn::Zero(d), v = hn::Zero(d);
    if constexpr (Rule::kMoments > 0) m = hn::LoadU(d, t.m + i);
    if constexpr (Rule::kMoments > 1) v = hn::LoadU(d, t.v + i);
    const auto step = hn::Mul(Rule::Of(d, n, g, m, v), hn::Set(d, n.rate));
    const auto next = hn::Sub(hn::Mul(p, hn::Set(d, n.kept)), step);
    hn::StoreU(Canonical(d, next), d, t.p + i);
    if constexpr (Rule::kMoments > 0) hn::StoreU(m, d, t.m + i);
    if constexpr (Rule::kMoments > 1) hn::StoreU(v, d, t.v + i);
  });
}

constexpr size_t kLine = 64;

// Returns the gradient as S, in place or in `scratch`.
template <typename S>
HWY_INLINE const S* LoadGradient(const StepJob& job, int64_t at, int64_t count,
                                 S* scratch) {
  if constexpr (std::is_same_v<S, float>) {
    if (job.gradient_type != DType::kF32) {
      Widen(job.gradient_type == DType::kBF16,
            reinterpret_cast<const uint16_t*>(job.gradient) + at, scratch,
            static_cast<size_t>(count));
      return scratch;
    }
  }
  return reinterpret_cast<const S*>(job.gradient) + at;
}

// Streaming stores: whole cache lines of `to`, which is aligned to a line,
// bypass the caches.
HWY_INLINE void StreamCopy(bool is_bf16, const float* from, uint16_t* to,
                           size_t count) {
  alignas(kLine) uint16_t scratch[kLargestTile];
  Narrow(is_bf16, from, scratch, count);
  const Full<uint16_t> d;
  constexpr size_t kPerLine = kLine / sizeof(uint16_t);
  const size_t whole = count / kPerLine * kPerLine;
  for (size_t i = 0; i < whole; i += hn::MaxLanes(d)) {
    hn::Stream(hn::Load(d, scratch + i), d, to + i);
  }
  for (size_t i = whole; i < count; ++i) to[i] = scratch[i];
}

HWY_INLINE void CopyOut(const StepJob& job, int64_t at, int64_t count) {
  const auto* from = reinterpret_cast<const float*>(job.parameter) + at;
  auto* to = reinterpret_cast<uint16_t*>(job.copy) + at;
  const bool is_bf16 = job.copy_type == DType::kBF16;
  const bool starts_line = reinterpret_cast<uintptr_t>(to) % kLine == 0;
  if (job.streams_copy && starts_line) {
    StreamCopy(is_bf16, from, to, static_cast<size_t>(count));
  } else {
    Narrow(is_bf16, from, to, static_cast<size_t>(count));
  }
}

bool HasBlocks(const StepJob& job) {
  return job.first.type == StoredMoment::kBlockwise8 ||
         job.second.type == StoredMoment::kBlockwise8;
}

int64_t TileOf(const StepJob& job) {
  return HWY_MAX(kTile, HWY_MAX(job.first.block, job.second.block));
}

// Elements before the copy's first whole line, which form a separate tile.
int64_t Lead(const StepJob& job) {
  if (!job.streams_copy || job.copy == nullptr || HasBlocks(job)) return 0;
  const auto address = reinterpret_cast<uintptr_t>(job.copy);
  return static_cast<int64_t>(-address % kLine / sizeof(uint16_t));
}

template <typename S, StepRule rule, bool kDecayInGradient>
void RunTiles(const StepJob& job) {
  constexpr int kMoments = Direction<rule>::kMoments;
  alignas(kLine) S gradient[kLargestTile];
  alignas(kLine) S first[kLargestTile];
  alignas(kLine) S second[kLargestTile];
  const auto numbers = job.numbers.As<S>();
  const int64_t tile = TileOf(job);
  int64_t next = Lead(job);
  if (next == 0) next = tile;
  for (int64_t at = 0; at < job.count; at = next, next += tile) {
    const int64_t count = HWY_MIN(next, job.count) - at;
    Tile<S> t = {.p = reinterpret_cast<S*>(job.parameter) + at,
                 .g = LoadGradient<S>(job, at, count, gradient),
                 .m = nullptr,
                 .v = nullptr};
    if constexpr (kMoments > 0) {
      t.m = LoadMoments<S, true>(job.first, at, count, first);
    }
    if constexpr (kMoments > 1) {
      t.v = LoadMoments<S, false>(job.second, at, count, second);
    }
    Sweep<rule, kDecayInGradient, S>(numbers, t, static_cast<size_t>(count));
    const RandomBits bits = {job.random_key,
                             job.random_index + static_cast<uint32_t>(at)};
    const RandomBits* const random = job.rounds_at_random ? &bits : nullptr;
    if constexpr (kMoments > 0) {
      SaveMoments<S, true>(job.first, at, count, t.m, random);
    }
    if constexpr (kMoments > 1) {
      SaveMoments<S, false>(job.second, at, count, t.v, random);
    }
    if constexpr (std::is_same_v<S, float>) {
      if (job.copy != nullptr) CopyOut(job, at, count);
    }
  }
}

template <typename S, StepRule rule>
void RunRule(const StepJob& job) {
  if (job.numbers.decay_in_gradient != 0) {
    RunTiles<S, rule, true>(job);
  } else {
    RunTiles<S, rule, false>(job);
  }
}

template <typename S>
void RunTyped(const StepJob& job) {
  switch (job.rule) {
    case StepRule::kAdamW:
      return RunRule<S, StepRule::kAdamW>(job);
    case StepRule::kMomentum:
      return RunRule<S, StepRule::kMomentum>(job);
    case StepRule::kNesterov:
      return RunRule<S, StepRule::kNesterov>(job);
    case StepRule::kPlain:
      return RunRule<S, StepRule::kPlain>(job);
    case StepRule::kLion:
      return RunRule<S, StepRule::kLion>(job);
  }
}

void RunStepHere(const StepJob& job) {
  if (job.parameter_type == DType::kF64) {
    RunTyped<double>(job);
  } else {
    RunTyped<float>(job);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(RunStepHere);

void RunStep(const StepJob& job) {
  HWY_DYNAMIC_DISPATCH(RunStepHere)(job);
  if (job.streams_copy) hwy::FlushStream();
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
