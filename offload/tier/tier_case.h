// TierCase: a tier under test, and what of the contract it fixes.
#ifndef TESSERA_OFFLOAD_TIER_TIER_CASE_H_
#define TESSERA_OFFLOAD_TIER_TIER_CASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "offload/tier/memory_tier.h"

namespace tessera::offload {

struct TierCase {
  std::string name;
  // A tier whose nearest budget is this.
  std::function<std::shared_ptr<MemoryTier>(int64_t budget)> make;
  // Whether a block costs exactly its bytes, of that budget alone.
  bool exact = true;
  // Bytes that a Put needs beyond what is in use; `old` is the replaced block.
  // None where eviction or encoding decides.
  std::function<int64_t(std::optional<int64_t> old, int64_t bytes)> extra;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_TIER_CASE_H_
