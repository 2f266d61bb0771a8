#include "offload/codec/block_kernels.h"

#include <bit>

// SSSE3 without SSE4 is history; of the rest, vectors of known size.
#define HWY_DISABLED_TARGETS                                                   \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/codec/block_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "offload/codec/nf4_levels-inl.h"
#include "offload/codec/scaling.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Bit patterns of magnitudes are ordered as the magnitudes are, with infinities
// and then NaN on top: an integer maximum, exact in any order.
void LargestOfBlocks(const float* values, size_t blocks, size_t block,
                     float* largest) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  for (size_t b = 0; b < blocks; ++b) {
    const float* const from = values + b * block;
    auto m0 = hn::Zero(di), m1 = hn::Zero(di);
    for (size_t i = 0; i < block; i += 2 * lanes) {
      const auto v0 = hn::LoadU(d, from + i);
      const auto v1 = hn::LoadU(d, from + i + lanes);
      m0 = hn::Max(m0, hn::BitCast(di, hn::Abs(v0)));
      m1 = hn::Max(m1, hn::BitCast(di, hn::Abs(v1)));
    }
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, hn::Max(m0, m1)));
    largest[b] = std::bit_cast<float>(bits);
  }
}

void Int8FromFloats(const float* values, size_t blocks, const float* scales,
                    int8_t* codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  // Added to a small float it leaves the nearest integer in the low bits.
  const auto magic = hn::Set(d, 0x1.8p23f);
  for (size_t b = 0; b < blocks; ++b) {
    const Reciprocal factors = ReciprocalOf(scales[b], 127.0f);
    const auto lift = hn::Set(d, factors.lift);
    const auto inverse = hn::Set(d, factors.inverse);
    for (size_t i = b * kInt8Block; i < (b + 1) * kInt8Block; i += lanes) {
      const auto v = hn::Mul(hn::Mul(hn::LoadU(d, values + i), lift), inverse);
      const auto code =
          hn::Sub(hn::BitCast(di, hn::Add(v, magic)), hn::BitCast(di, magic));
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    }
  }
}

void FloatsFromInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  for (size_t b = 0; b < blocks; ++b) {
    const float lift = LiftOf(scales[b]);
    const float top = scales[b] * lift;
    const auto high = hn::Set(d, top);
    const auto low = hn::Set(d, 0.0f - top);
    const auto step = hn::Set(d, StepReaching(top, 127.0f));
    const auto drop = hn::Set(d, 1.0f / lift);
    for (size_t i = b * kInt8Block; i < (b + 1) * kInt8Block; i += lanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
      const auto v = hn::Mul(hn::ConvertTo(d, code), step);
      const auto inside = hn::Min(hn::Max(v, low), high);
      hn::StoreU(hn::Mul(inside, drop), d, values + i);
    }
  }
}

void Nf4FromFloats(const float* values, size_t blocks, const float* scales,
                   uint8_t* packed) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const Nf4Search search;
  for (size_t b = 0; b < blocks; ++b) {
    const Reciprocal factors = ReciprocalOf(scales[b], 1.0f);
    const auto lift = hn::Set(d, factors.lift);
    const auto inverse = hn::Set(d, factors.inverse);
    const float* const from = values + b * kNf4Block;
    for (size_t i = 0; i < kNf4BlockBytes; i += lanes) {
      const auto x = hn::LoadU(d, from + i);
      const auto y = hn::LoadU(d, from + i + kNf4BlockBytes);
      const auto low = search.Nearest(hn::Mul(hn::Mul(x, lift), inverse));
      const auto high = search.Nearest(hn::Mul(hn::Mul(y, lift), inverse));
      const auto both = hn::Or(low, hn::ShiftLeft<4>(high));
      hn::StoreU(hn::DemoteTo(d8, both), d8, packed + b * kNf4BlockBytes + i);
    }
  }
}

void FloatsFromNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto low_bits = hn::Set(di, 15);
  for (size_t b = 0; b < blocks; ++b) {
    const Nf4Table table(scales[b]);
    float* const to = values + b * kNf4Block;
    for (size_t i = 0; i < kNf4BlockBytes; i += lanes) {
      const auto both =
          hn::PromoteTo(di, hn::LoadU(d8, packed + b * kNf4BlockBytes + i));
      hn::StoreU(table.At(hn::And(both, low_bits)), d, to + i);
      hn::StoreU(table.At(hn::ShiftRight<4>(both)), d, to + i + kNf4BlockBytes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(LargestOfBlocks);
HWY_EXPORT(Int8FromFloats);
HWY_EXPORT(FloatsFromInt8);
HWY_EXPORT(Nf4FromFloats);
HWY_EXPORT(FloatsFromNf4);

void LargestMagnitudes(const float* values, size_t blocks, size_t block,
                       float* largest) {
  HWY_DYNAMIC_DISPATCH(LargestOfBlocks)(values, blocks, block, largest);
}
void QuantizeInt8(const float* values, size_t blocks, const float* scales,
                  int8_t* codes) {
  HWY_DYNAMIC_DISPATCH(Int8FromFloats)(values, blocks, scales, codes);
}
void DequantizeInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values) {
  HWY_DYNAMIC_DISPATCH(FloatsFromInt8)(codes, blocks, scales, values);
}
void QuantizeNf4(const float* values, size_t blocks, const float* scales,
                 uint8_t* packed) {
  HWY_DYNAMIC_DISPATCH(Nf4FromFloats)(values, blocks, scales, packed);
}
void DequantizeNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values) {
  HWY_DYNAMIC_DISPATCH(FloatsFromNf4)(packed, blocks, scales, values);
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
