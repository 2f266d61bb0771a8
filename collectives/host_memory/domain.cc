#include "collectives/host_memory/domain.h"

#include <utility>

namespace tessera::collectives::host_memory {

void Domain::Retire(const GroupBlock& block, bool owns_block,
                    std::vector<std::byte*> memory) {
  block.header().departed.fetch_add(1, std::memory_order_acq_rel);
  {
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back({block, owns_block, false, std::move(memory)});
  }
  Reclaim();
}

void Domain::Reclaim() {
  const std::lock_guard lock(retired_mutex_);
  std::erase_if(retired_,
                [this](Retired& retired) { return TryFree(retired); });
}

// Returns true if everything has been freed.
bool Domain::TryFree(Retired& retired) {
  GroupHeader& header = retired.block.header();
  const auto all = static_cast<uint32_t>(retired.block.size());
  if (!retired.released) {
    if (header.departed.load(std::memory_order_acquire) != all) return false;
    for (std::byte* memory : retired.memory) Free(memory);
    retired.memory.clear();
    retired.released = true;
    // From here only the owner may access the block.
    header.released.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!retired.owns_block) return true;
  if (header.released.load(std::memory_order_acquire) != all) return false;
  Free(retired.block.start());
  return true;
}

}  // namespace tessera::collectives::host_memory
