#include "collectives/reduction/copy.h"

#include <cstring>

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduction/copy.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole 64-byte lines go past the caches; `to` is at the start of one.
void StreamLines(uint8_t* HWY_RESTRICT to, const uint8_t* HWY_RESTRICT from,
                 size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kStep = kLanes < 64 ? 64 : 4 * kLanes;
  size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
    for (size_t i = 0; i < kStep; i += kLanes) {
      hn::Stream(hn::LoadU(d, from + at + i), d, to + at + i);
    }
  }
  for (; at < bytes; at += kLanes) {
    hn::Stream(hn::LoadU(d, from + at), d, to + at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::collectives {

HWY_EXPORT(StreamLines);

void CopyBytes(void* destination, const void* source, int64_t bytes,
               StoreMode mode) {
  if (bytes <= 0) return;
  constexpr size_t kLine = 64;
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  auto left = static_cast<size_t>(bytes);
  if (mode == StoreMode::kCached || left < 2 * kLine) {
    std::memcpy(to, from, left);
    return;
  }
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
  std::memcpy(to, from, head);
  left -= head;
  const size_t lines = left / kLine * kLine;
  HWY_DYNAMIC_DISPATCH(StreamLines)(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, left - lines);
  FenceStreamingStores();
}

void FenceStreamingStores() { hwy::FlushStream(); }

}  // namespace tessera::collectives
#endif  // HWY_ONCE
