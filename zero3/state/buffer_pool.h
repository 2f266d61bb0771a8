// BufferPool: blocks of memory for gathered parameters and whole gradients,
// used again and again.
//
//   BufferPool pool(device);
//   TESSERA_ASSIGN_OR_RETURN(AccountedMemory block, pool.Take("w", bytes));
//   ...
//   pool.Give(std::move(block));
//   pool.Trim();                      // Frees unused blocks.
//
// A returned block is reused for the next request of its size. The pool never
// holds more bytes, used and free together, than the maximum in use since the
// last Trim: it frees unused blocks before it allocates more. Not thread-safe.
#ifndef TESSERA_ZERO3_STATE_BUFFER_POOL_H_
#define TESSERA_ZERO3_STATE_BUFFER_POOL_H_

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "zero3/state/accounted_memory.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

class BufferPool {
 public:
  // Blocks count against `device` as buffers. They are private memory of the
  // rank: shared memory would map the blocks of other ranks that it reads into
  // this process, up to (n - 1) / n of their bytes.
  explicit BufferPool(const StateDevice& device) : device_(device) {}

  // Uninitialised. ResourceExhausted if the budget has too little room.
  absl::StatusOr<AccountedMemory> Take(std::string_view key, int64_t bytes);
  // Returns a block of Take. Ignores an empty one.
  void Give(AccountedMemory block);
  // Frees all unused blocks.
  void Trim();

 private:
  void DropFree(int64_t bytes);

  const StateDevice device_;
  std::map<int64_t, std::vector<AccountedMemory>> free_;  // By size.
  int64_t free_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_used_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_BUFFER_POOL_H_
