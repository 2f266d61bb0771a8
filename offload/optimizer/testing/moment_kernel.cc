#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/highway_targets.h"
#include "offload/optimizer/testing/moment_codec.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/testing/moment_kernel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "offload/optimizer/floats-inl.h"
#include "offload/optimizer/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

template <bool kSigned>
void Decode(const MomentPointer& moment, int64_t count, float* values) {
  const float* const decoded =
      LoadMoments<float, kSigned>(moment, 0, count, values);
  if (decoded != values && count > 0) {
    std::memcpy(values, decoded, static_cast<size_t>(count) * sizeof(float));
  }
}

// Like the step, replaces NaN by the canonical NaN first.
template <bool kSigned>
void Encode(const MomentPointer& moment, int64_t count, const float* values) {
  alignas(64) float canonical[kLargestTile];
  for (int64_t at = 0; at < count; at += kLargestTile) {
    const int64_t size = std::min(kLargestTile, count - at);
    float* to = canonical;
    if (moment.type == StoredMoment::kF32) {
      to = reinterpret_cast<float*>(moment.values) + at;
    }
    ForEach<float>(static_cast<size_t>(size), [=](auto d, size_t i) HWY_ATTR {
      hn::StoreU(Canonical(d, hn::LoadU(d, values + at + i)), d, to + i);
    });
    SaveMoments<float, kSigned>(moment, at, size, to, nullptr);
  }
}

void DecodeHere(const MomentPointer& moment, bool is_signed, int64_t count,
                float* values) {
  (is_signed ? Decode<true> : Decode<false>)(moment, count, values);
}
void EncodeHere(const MomentPointer& moment, bool is_signed, int64_t count,
                const float* values) {
  (is_signed ? Encode<true> : Encode<false>)(moment, count, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(DecodeHere);
HWY_EXPORT(EncodeHere);

void DecodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   float* values) {
  HWY_DYNAMIC_DISPATCH(DecodeHere)(moment, is_signed, count, values);
}
void EncodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   const float* values) {
  HWY_DYNAMIC_DISPATCH(EncodeHere)(moment, is_signed, count, values);
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
