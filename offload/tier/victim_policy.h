// VictimPolicy: which block leaves a full tier.
#ifndef TESSERA_OFFLOAD_TIER_VICTIM_POLICY_H_
#define TESSERA_OFFLOAD_TIER_VICTIM_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

namespace tessera::offload {

struct VictimCandidate {
  std::string_view key;
  int64_t bytes = 0;
  uint64_t last_use = 0;  // larger: later
  bool dirty = false;     // leaving costs a write
};

// The index of the candidate (there is at least one) that leaves first to make
// room for `incoming`; nothing where none should. Called under the tier's lock:
// quick, and calling nothing of the tier.
using VictimPolicy = std::function<std::optional<size_t>(
    std::span<const VictimCandidate> candidates, std::string_view incoming)>;

// The one that was not used for longest.
inline VictimPolicy LeastRecentlyUsed() {
  return [](std::span<const VictimCandidate> candidates,
            std::string_view) -> std::optional<size_t> {
    const auto oldest = std::min_element(
        candidates.begin(), candidates.end(),
        [](const auto& a, const auto& b) { return a.last_use < b.last_use; });
    return static_cast<size_t>(oldest - candidates.begin());
  };
}

// The one whose next use is farthest, the optimal choice where the order of
// accesses is known (Belady, "A study of replacement algorithms", 1966). None
// where `incoming` is wanted later than all of them.
inline VictimPolicy FarthestNextUse(
    std::function<uint64_t(std::string_view key)> next_use) {
  return [next_use = std::move(next_use)](
             std::span<const VictimCandidate> candidates,
             std::string_view incoming) -> std::optional<size_t> {
    size_t farthest = 0;
    for (size_t i = 1; i < candidates.size(); ++i) {
      if (next_use(candidates[i].key) > next_use(candidates[farthest].key)) {
        farthest = i;
      }
    }
    if (next_use(candidates[farthest].key) <= next_use(incoming)) {
      return std::nullopt;
    }
    return farthest;
  };
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_VICTIM_POLICY_H_
