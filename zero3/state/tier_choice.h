// TierChoice: chooses the tier of a block of offloaded state: the near tier
// while its budget lasts, and then the far one.
//
//   TierChoice choice(files, 1 << 30);
//   block.tier = choice.For(host, block.bytes);
#ifndef TESSERA_ZERO3_STATE_TIER_CHOICE_H_
#define TESSERA_ZERO3_STATE_TIER_CHOICE_H_

#include <cstdint>

#include "offload/tier/memory_tier.h"

namespace tessera::zero3 {

class TierChoice {
 public:
  // If `far` is null everything goes to the near tier.
  TierChoice(offload::MemoryTier* far, int64_t near_budget)
      : far_(far), left_(near_budget) {}

  // Null if `near` is null: the block is not offloaded.
  offload::MemoryTier* For(offload::MemoryTier* near, int64_t bytes) {
    if (near == nullptr) return nullptr;
    if (far_ != nullptr && bytes > left_) return far_;
    left_ -= bytes;
    return near;
  }

 private:
  offload::MemoryTier* const far_;
  int64_t left_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_TIER_CHOICE_H_
