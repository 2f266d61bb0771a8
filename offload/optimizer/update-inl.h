// The update of an element by each rule, and the sweep over a tile. Compiled
// once for every instruction set: products and sums are separate instructions,
// divisions and roots are those of IEEE 754, and so the bits are the same.
#if defined(TESSERA_OFFLOAD_OPTIMIZER_UPDATE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OFFLOAD_OPTIMIZER_UPDATE_INL_H_
#undef TESSERA_OFFLOAD_OPTIMIZER_UPDATE_INL_H_
#else
#define TESSERA_OFFLOAD_OPTIMIZER_UPDATE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "offload/optimizer/floats-inl.h"
#include "offload/optimizer/step_job.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

// StepNumbers, rounded to the type that is computed in.
template <typename S>
struct Numbers {
  explicit Numbers(const StepNumbers& n)
      : gradient_scale(static_cast<S>(n.gradient_scale)),
        decay_in_gradient(static_cast<S>(n.decay_in_gradient)),
        kept(static_cast<S>(n.kept)),
        beta1(static_cast<S>(n.beta1)),
        fresh1(static_cast<S>(n.fresh1)),
        beta2(static_cast<S>(n.beta2)),
        fresh2(static_cast<S>(n.fresh2)),
        root_correction(static_cast<S>(n.root_correction)),
        epsilon(static_cast<S>(n.epsilon)),
        rate(static_cast<S>(n.rate)) {}

  S gradient_scale, decay_in_gradient, kept;
  S beta1, fresh1, beta2, fresh2;
  S root_correction, epsilon, rate;
};

// average * beta + value * fresh.
template <class D, class V = hn::Vec<D>, typename S = hn::TFromD<D>>
HWY_INLINE V Average(D d, V average, S beta, V value, S fresh) {
  return Canonical(d, hn::Add(hn::Mul(average, hn::Set(d, beta)),
                              hn::Mul(value, hn::Set(d, fresh))));
}

// The direction of a step, of which the parameter takes `rate`; moments are
// updated.
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_OFFLOAD_OPTIMIZER_UPDATE_INL_H_
