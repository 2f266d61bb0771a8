// NearBufferPool: the buffers of near memory. Internal: use prefetcher.h.
#ifndef TESSERA_OFFLOAD_PREFETCH_NEAR_POOL_H_
#define TESSERA_OFFLOAD_PREFETCH_NEAR_POOL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"

namespace tessera::offload {

// Reusable memory within a budget, allocated in exact sizes.
//
//   NearBufferPool pool(HostMemory(), 2LL << 30);
//   if (pool.free_bytes() >= bytes) {
//     TESSERA_ASSIGN_OR_RETURN(Buffer buffer, pool.Take(bytes));
//     ...
//     pool.GiveBack(std::move(buffer));
//   }
//
// Returned buffers are kept for the next request of the same size, since fresh
// pages cost about as much as filling them, and freed when another size needs
// the memory. Used and kept bytes together never exceed the budget, except for
// buffers that a device still uses, which are freed when it is done. Addresses
// are multiples of 4096, as direct I/O requires. Not safe for concurrent use.
class NearBufferPool {
 public:
  NearBufferPool(std::shared_ptr<MemoryResource> resource, int64_t budget);

  int64_t budget() const { return budget_; }
  void Grow(int64_t bytes) { budget_ += bytes; }
  // The bytes that Take can still return.
  int64_t free_bytes() const { return budget_ - taken_bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }
  int64_t kept_bytes() const { return kept_bytes_; }

  // ResourceExhausted if `bytes` exceeds free_bytes(); otherwise the resource's
  // errors. The caller must wait for `last_use` before it uses the memory; if
  // `last_use` is null, Take waits.
  absl::StatusOr<Buffer> Take(int64_t bytes, Event* last_use = nullptr);
  // Returns a buffer, which enqueued work uses until `last_use`. Only Trim
  // waits for that event.
  void GiveBack(Buffer buffer, Event last_use = {});
  // Frees the kept buffers.
  void Trim();

 private:
  void Shrink(int64_t bytes);

  const std::shared_ptr<MemoryResource> resource_;
  int64_t budget_;
  int64_t taken_bytes_ = 0;
  int64_t kept_bytes_ = 0;
  struct Kept {
    Buffer buffer;
    Event last_use;
  };
  std::map<int64_t, std::vector<Kept>> kept_;  // by size, none empty
  std::vector<Kept> retired_;  // Freed when their last use is done.
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_NEAR_POOL_H_
