#include "offload/file/bounce_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

absl::StatusOr<std::unique_ptr<BouncePool>> BouncePool::Create(
    std::shared_ptr<Accounting> accounting,
    std::shared_ptr<MemoryResource> resource, int64_t buffer_bytes,
    int64_t count) {
  constexpr auto kUnit = static_cast<int64_t>(kAlignment);
  if (count < 1 || buffer_bytes < kUnit || buffer_bytes % kUnit != 0 ||
      count > INT64_MAX / 2 / buffer_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " bounce buffers of ", buffer_bytes,
                     " bytes; at least one, of a multiple of ", kAlignment));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Reservation room,
      Accounting::Reserve(std::move(accounting), "bounce buffers",
                          count * buffer_bytes, Purpose::kBuffers));
  TESSERA_ASSIGN_OR_RETURN(
      Buffer memory,
      Buffer::Allocate(std::move(resource),
                       static_cast<size_t>(count * buffer_bytes), kAlignment));
  return std::unique_ptr<BouncePool>(
      new BouncePool(std::move(room), std::move(memory), buffer_bytes));
}

BouncePool::BouncePool(Reservation room, Buffer memory, int64_t buffer_bytes)
    : room_(std::move(room)),
      memory_(std::move(memory)),
      buffer_bytes_(buffer_bytes) {
  const auto step = static_cast<size_t>(buffer_bytes);
  for (size_t at = 0; at < memory_.size(); at += step) {
    free_.push_back(memory_.data() + at);
  }
}

void BouncePool::Acquire(std::function<void(std::byte*)> use) {
  std::byte* buffer = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (free_.empty()) {
      waiting_.push_back(std::move(use));
      return;
    }
    buffer = free_.back();
    free_.pop_back();
  }
  use(buffer);
}

void BouncePool::Release(std::byte* buffer) {
  std::function<void(std::byte*)> next;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      free_.push_back(buffer);
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next(buffer);
}

}  // namespace tessera::offload
