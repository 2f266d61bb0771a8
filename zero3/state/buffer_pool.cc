#include "zero3/state/buffer_pool.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::StatusOr<AccountedMemory> BufferPool::Take(std::string_view key,
                                                 int64_t bytes) {
  AccountedMemory block;
  const auto found = free_.find(bytes);
  if (found != free_.end()) {
    block = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    free_bytes_ -= bytes;
  } else {
    const int64_t room = std::max(most_used_bytes_, used_bytes_ + bytes);
    DropFree(free_bytes_ + used_bytes_ + bytes - room);
    TESSERA_ASSIGN_OR_RETURN(
        block, AccountedMemory::Allocate(device_, key, bytes,
                                         offload::Purpose::kBuffers));
  }
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

void BufferPool::Give(AccountedMemory block) {
  const auto bytes = static_cast<int64_t>(block.bytes().size());
  if (bytes == 0) return;
  used_bytes_ -= bytes;
  free_bytes_ += bytes;
  free_[bytes].push_back(std::move(block));
}

void BufferPool::Trim() {
  free_.clear();
  free_bytes_ = 0;
  most_used_bytes_ = used_bytes_;
}

// The largest first, until at least so many bytes are free'd.
void BufferPool::DropFree(int64_t bytes) {
  while (bytes > 0 && !free_.empty()) {
    const auto largest = std::prev(free_.end());
    bytes -= largest->first;
    free_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) free_.erase(largest);
  }
}

}  // namespace tessera::zero3
