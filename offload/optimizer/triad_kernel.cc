#include "offload/optimizer/triad_kernel.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/triad_kernel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kStreaming>
HWY_INLINE void Triad(const TriadArrays& arrays, double scale) {
  const hn::CappedTag<double, kTriadStep> d;
  const auto s = hn::Set(d, scale);
  for (size_t i = 0; i < arrays.count; i += hn::Lanes(d)) {
    const auto sum = hn::Add(hn::Load(d, arrays.b + i),
                             hn::Mul(s, hn::Load(d, arrays.c + i)));
    if constexpr (kStreaming) {
      hn::Stream(sum, d, arrays.a + i);
    } else {
      hn::Store(sum, d, arrays.a + i);
    }
  }
}

void OrdinaryTriad(const TriadArrays& arrays, double scale) {
  Triad<false>(arrays, scale);
}
void StreamingTriad(const TriadArrays& arrays, double scale) {
  Triad<true>(arrays, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(OrdinaryTriad);
HWY_EXPORT(StreamingTriad);

void RunTriad(const TriadArrays& arrays, double scale) {
  HWY_DYNAMIC_DISPATCH(OrdinaryTriad)(arrays, scale);
}
void RunStreamingTriad(const TriadArrays& arrays, double scale) {
  HWY_DYNAMIC_DISPATCH(StreamingTriad)(arrays, scale);
  hwy::FlushStream();
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
