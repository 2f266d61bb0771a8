// BouncePool: aligned buffers that stand between callers' memory and the
// device, as many as a stated number of bytes holds.
//
//   pool->Acquire([=](std::byte* buffer) { ...; pool->Release(buffer); });
#ifndef TESSERA_OFFLOAD_FILE_BOUNCE_POOL_H_
#define TESSERA_OFFLOAD_FILE_BOUNCE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {

// Safe for concurrent use.
class BouncePool {
 public:
  static constexpr size_t kAlignment = 4096;

  // `count` buffers (at least 1) of `buffer_bytes`, taken from `resource` and
  // counted by `accounting` (Purpose::kBuffers) for as long as the pool lives.
  static absl::StatusOr<std::unique_ptr<BouncePool>> Create(
      std::shared_ptr<Accounting> accounting,
      std::shared_ptr<MemoryResource> resource, int64_t buffer_bytes,
      int64_t count);

  int64_t buffer_bytes() const { return buffer_bytes_; }

  // Calls `use` with a buffer: now, on this thread, where one is free; else,
  // in the order of the calls, on the thread that releases one.
  void Acquire(std::function<void(std::byte*)> use);
  void Release(std::byte* buffer);

 private:
  BouncePool(Reservation room, Buffer memory, int64_t buffer_bytes);

  const Reservation room_;
  Buffer memory_;
  const int64_t buffer_bytes_;
  absl::Mutex mutex_;
  std::vector<std::byte*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void(std::byte*)>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BOUNCE_POOL_H_
