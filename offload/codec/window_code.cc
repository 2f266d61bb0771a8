#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/highway_targets.h"
#include "offload/codec/plane_coder.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/codec/window_code.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

#ifndef TESSERA_OFFLOAD_CODEC_LOSSLESS_WINDOW_CODE_CC_
#define TESSERA_OFFLOAD_CODEC_LOSSLESS_WINDOW_CODE_CC_
namespace tessera::offload {

inline constexpr size_t kWindowGroup = 64;
inline constexpr size_t kWindowBits = 3;
inline constexpr size_t kGroupBytes = kWindowBits * sizeof(uint64_t);
inline constexpr uint8_t kEscape = 7;

// The bits of the codes of a group: bit i of bits[k] is bit k of code i.
using GroupBits = std::array<uint64_t, kWindowBits>;

inline uint64_t EscapesOf(const GroupBits& bits) {
  return bits[0] & bits[1] & bits[2];
}

}  // namespace tessera::offload
#endif  // TESSERA_OFFLOAD_CODEC_LOSSLESS_WINDOW_CODE_CC_

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

GroupBits CodeGroup(const uint8_t* bytes, uint8_t top) {
  GroupBits bits = {};
  for (size_t i = 0; i < kWindowGroup; ++i) {
    const uint8_t below = static_cast<uint8_t>(top - bytes[i]);
    const uint64_t code = std::min(below, kEscape);
    for (size_t k = 0; k < kWindowBits; ++k) bits[k] |= (code >> k & 1) << i;
  }
  return bits;
}

void DecodeGroup(const GroupBits& bits, uint8_t top, uint8_t* bytes) {
  for (size_t i = 0; i < kWindowGroup; ++i) {
    uint64_t code = 0;
    for (size_t k = 0; k < kWindowBits; ++k) code |= (bits[k] >> i & 1) << k;
    bytes[i] = static_cast<uint8_t>(top - code);
  }
}

#else

HWY_INLINE GroupBits CodeGroup(const uint8_t* bytes, uint8_t top) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  // Extra space: storing mask bits may write past the end.
  uint8_t stored[kWindowBits][2 * sizeof(uint64_t)];
  for (size_t i = 0; i < kWindowGroup; i += lanes) {
    const auto below = hn::Sub(hn::Set(d, top), hn::LoadU(d, bytes + i));
    const auto code = hn::Min(below, hn::Set(d, kEscape));
    for (size_t k = 0; k < kWindowBits; ++k) {
      const auto bit = hn::Set(d, static_cast<uint8_t>(1 << k));
      hn::StoreMaskBits(d, hn::TestBit(code, bit), stored[k] + i / 8);
    }
  }
  GroupBits bits;
  for (size_t k = 0; k < kWindowBits; ++k) {
    std::memcpy(&bits[k], stored[k], sizeof(bits[k]));
  }
  return bits;
}

HWY_INLINE void DecodeGroup(const GroupBits& bits, uint8_t top,
                            uint8_t* bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  // Extra space: loading mask bits may read past the end.
  uint8_t stored[kWindowBits][2 * sizeof(uint64_t)] = {};
  for (size_t k = 0; k < kWindowBits; ++k) {
    std::memcpy(stored[k], &bits[k], sizeof(bits[k]));
  }
  for (size_t i = 0; i < kWindowGroup; i += lanes) {
    auto e = hn::Set(d, top);
    for (size_t k = 0; k < kWindowBits; ++k) {
      const auto mask = hn::LoadMaskBits(d, stored[k] + i / 8);
      const auto bit = hn::Set(d, static_cast<uint8_t>(1 << k));
      e = hn::Sub(e, hn::IfThenElseZero(mask, bit));
    }
    hn::StoreU(e, d, bytes + i);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// Encodes `groups` whole groups. Writes escapes to `escapes`, up to its end.
// Returns their number, or one more than fits.
size_t CodeGroups(const uint8_t* bytes, size_t groups, uint8_t top,
                  std::byte* out, std::span<std::byte> escapes) {
  size_t used = 0;
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* const group = bytes + g * kWindowGroup;
    const GroupBits bits = CodeGroup(group, top);
    std::memcpy(out + g * kGroupBytes, bits.data(), kGroupBytes);
    for (uint64_t left = EscapesOf(bits); left != 0; left &= left - 1) {
      if (used == escapes.size()) return used + 1;
      escapes[used++] = static_cast<std::byte>(group[std::countr_zero(left)]);
    }
  }
  return used;
}

// The inverse. Returns the number of escapes used.
size_t DecodeGroups(const std::byte* in, size_t groups, uint8_t top,
                    std::span<const std::byte> escapes, uint8_t* bytes) {
  size_t used = 0;
  for (size_t g = 0; g < groups; ++g) {
    uint8_t* const group = bytes + g * kWindowGroup;
    GroupBits bits;
    std::memcpy(bits.data(), in + g * kGroupBytes, kGroupBytes);
    DecodeGroup(bits, top, group);
    for (uint64_t left = EscapesOf(bits); left != 0; left &= left - 1) {
      if (used == escapes.size()) return used + 1;
      group[std::countr_zero(left)] = static_cast<uint8_t>(escapes[used++]);
    }
  }
  return used;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {
namespace {

HWY_EXPORT(CodeGroups);
HWY_EXPORT(DecodeGroups);

// The window of seven values that contains most bytes of a sample.
struct Window {
  uint8_t top;
  bool pays;  // The plane shrinks with this window.
};
Window ChooseWindow(std::span<const std::byte> plane) {
  constexpr size_t kRuns = 8, kRunBytes = 128;
  const size_t run = std::min(kRunBytes, plane.size());
  const size_t stride = (plane.size() - run) / (kRuns - 1);
  std::array<uint32_t, 256> counts = {};
  for (size_t r = 0; r < kRuns; ++r) {
    for (size_t i = 0; i < run; ++i) {
      ++counts[static_cast<uint8_t>(plane[r * stride + i])];
    }
  }
  uint32_t covered = 0;
  for (size_t e = 0; e < kEscape; ++e) covered += counts[e];
  uint32_t most = covered;
  uint8_t top = kEscape - 1;
  for (size_t e = kEscape; e < 256 + kEscape - 1; ++e) {
    covered += counts[e % 256];
    covered -= counts[e - kEscape];
    if (covered <= most) continue;
    most = covered;
    top = static_cast<uint8_t>(e);
  }
  return {top, most > kRuns * run / 2};
}

}  // namespace

size_t EncodeWindow(std::span<const std::byte> plane,
                    std::span<std::byte> room) {
  const size_t whole = plane.size() / kWindowGroup;
  const size_t rest = plane.size() % kWindowGroup;
  const size_t coded = 1 + (whole + (rest != 0)) * kGroupBytes;
  if (coded > room.size()) return 0;
  const Window window = ChooseWindow(plane);
  if (!window.pays) return 0;
  room[0] = static_cast<std::byte>(window.top);
  const auto encode = HWY_DYNAMIC_DISPATCH(CodeGroups);
  std::span<std::byte> escapes = room.subspan(coded);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(plane.data());
  size_t used = encode(bytes, whole, window.top, &room[1], escapes);
  if (used > escapes.size()) return 0;
  if (rest != 0) {
    std::array<uint8_t, kWindowGroup> last;
    last.fill(window.top);
    std::memcpy(last.data(), bytes + whole * kWindowGroup, rest);
    escapes = escapes.subspan(used);
    const size_t more = encode(last.data(), 1, window.top,
                               &room[1 + whole * kGroupBytes], escapes);
    if (more > escapes.size()) return 0;
    used += more;
  }
  return coded + used;
}

bool DecodeWindow(std::span<const std::byte> held, std::span<std::byte> plane) {
  const size_t whole = plane.size() / kWindowGroup;
  const size_t rest = plane.size() % kWindowGroup;
  const size_t coded = 1 + (whole + (rest != 0)) * kGroupBytes;
  if (held.size() < coded) return false;
  const auto top = static_cast<uint8_t>(held[0]);
  const auto decode = HWY_DYNAMIC_DISPATCH(DecodeGroups);
  std::span<const std::byte> escapes = held.subspan(coded);
  const size_t used = decode(&held[1], whole, top, escapes,
                             reinterpret_cast<uint8_t*>(plane.data()));
  if (used > escapes.size()) return false;
  escapes = escapes.subspan(used);
  if (rest == 0) return escapes.empty();
  std::array<uint8_t, kWindowGroup> last;
  const size_t more =
      decode(&held[1 + whole * kGroupBytes], 1, top, escapes, last.data());
  std::memcpy(plane.data() + whole * kWindowGroup, last.data(), rest);
  return more == escapes.size();
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
