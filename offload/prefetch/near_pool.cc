#include "offload/prefetch/near_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

NearBufferPool::NearBufferPool(std::shared_ptr<MemoryResource> resource,
                               int64_t budget)
    : resource_(std::move(resource)), budget_(budget) {}

absl::StatusOr<Buffer> NearBufferPool::Take(int64_t bytes, Event* last_use) {
  if (bytes < 0 || bytes > free_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot take ", bytes, " bytes of near memory: ", free_bytes(), " of ",
        budget_, " are free"));
  }
  if (const auto same = kept_.find(bytes); same != kept_.end()) {
    Kept kept = std::move(same->second.back());
    same->second.pop_back();
    if (same->second.empty()) kept_.erase(same);
    kept_bytes_ -= bytes;
    taken_bytes_ += bytes;
    if (last_use == nullptr) {
      TESSERA_RETURN_IF_ERROR(kept.last_use.Wait());
    } else {
      *last_use = std::move(kept.last_use);
    }
    return std::move(kept.buffer);
  }
  Shrink(free_bytes() - bytes);
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer,
      Buffer::Allocate(resource_, static_cast<size_t>(bytes), kAlignment));
  taken_bytes_ += bytes;
  return buffer;
}

void NearBufferPool::GiveBack(Buffer buffer, Event last_use) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  taken_bytes_ -= bytes;
  if (bytes == 0) return;
  kept_bytes_ += bytes;
  kept_[bytes].push_back({std::move(buffer), std::move(last_use)});
}

void NearBufferPool::Trim() {
  Shrink(0);
  for (const Kept& kept : retired_) kept.last_use.Wait().IgnoreError();
  retired_.clear();
}

// Keeps at most `bytes`; frees the largest buffers first.
void NearBufferPool::Shrink(int64_t bytes) {
  const auto is_done = [](const Kept& kept) {
    return kept.last_use.Test().value_or(true);
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), is_done),
                 retired_.end());
  while (kept_bytes_ > bytes) {
    const auto largest = std::prev(kept_.end());
    if (!is_done(largest->second.back())) {
      retired_.push_back(std::move(largest->second.back()));
    }
    largest->second.pop_back();
    kept_bytes_ -= largest->first;
    if (largest->second.empty()) kept_.erase(largest);
  }
}

}  // namespace tessera::offload
