// BufferPool: memory under a budget, given out in exact sizes and used again.
//
//   BufferPool pool(HostMemory(), 2LL << 30);
//   if (pool.free_bytes() >= bytes) {
//     TESSERA_ASSIGN_OR_RETURN(Buffer buffer, pool.Take(bytes));
//     ...
//     pool.GiveBack(std::move(buffer));
//   }
//
// What is given back is kept for the next request of the same size, since
// fresh pages cost about as much as filling them, and freed where another size
// needs the room. Taken and kept bytes together never exceed the budget.
// Addresses are multiples of 4096, as direct I/O asks. Not safe for concurrent
// use.
#ifndef TESSERA_OFFLOAD_PREFETCH_BUFFER_POOL_H_
#define TESSERA_OFFLOAD_PREFETCH_BUFFER_POOL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"

namespace tessera::offload {

class BufferPool {
 public:
  BufferPool(std::shared_ptr<MemoryResource> resource, int64_t budget);

  int64_t budget() const { return budget_; }
  void Grow(int64_t bytes) { budget_ += bytes; }
  // What Take can give.
  int64_t free_bytes() const { return budget_ - taken_bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }
  int64_t kept_bytes() const { return kept_bytes_; }

  // ResourceExhausted where `bytes` exceed free_bytes(), or as the resource
  // says.
  absl::StatusOr<Buffer> Take(int64_t bytes);
  void GiveBack(Buffer buffer);
  // Frees what is kept.
  void Trim();

 private:
  void Shrink(int64_t bytes);

  const std::shared_ptr<MemoryResource> resource_;
  int64_t budget_;
  int64_t taken_bytes_ = 0;
  int64_t kept_bytes_ = 0;
  std::map<int64_t, std::vector<Buffer>> kept_;  // by size, none empty
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_BUFFER_POOL_H_
