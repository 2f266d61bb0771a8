#include "offload/prefetch/buffer_pool.h"

#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {
namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

BufferPool::BufferPool(std::shared_ptr<MemoryResource> resource, int64_t budget)
    : resource_(std::move(resource)), budget_(budget) {}

absl::StatusOr<Buffer> BufferPool::Take(int64_t bytes) {
  if (bytes < 0 || bytes > free_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot take ", bytes, " bytes of near memory: ", free_bytes(), " of ",
        budget_, " are free"));
  }
  if (const auto same = kept_.find(bytes); same != kept_.end()) {
    Buffer buffer = std::move(same->second.back());
    same->second.pop_back();
    if (same->second.empty()) kept_.erase(same);
    kept_bytes_ -= bytes;
    taken_bytes_ += bytes;
    return buffer;
  }
  Shrink(free_bytes() - bytes);
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer,
      Buffer::Allocate(resource_, static_cast<size_t>(bytes), kAlignment));
  taken_bytes_ += bytes;
  return buffer;
}

void BufferPool::GiveBack(Buffer buffer) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  taken_bytes_ -= bytes;
  if (bytes == 0) return;
  kept_bytes_ += bytes;
  kept_[bytes].push_back(std::move(buffer));
}

void BufferPool::Trim() { Shrink(0); }

// Keeps at most `bytes`; the largest go first.
void BufferPool::Shrink(int64_t bytes) {
  while (kept_bytes_ > bytes) {
    const auto largest = std::prev(kept_.end());
    largest->second.pop_back();
    kept_bytes_ -= largest->first;
    if (largest->second.empty()) kept_.erase(largest);
  }
}

}  // namespace tessera::offload
