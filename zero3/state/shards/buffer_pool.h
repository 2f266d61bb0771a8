// BufferPool: blocks of memory for gathered parameters and whole gradients,
// used again and again.
//
//   BufferPool pool(device);
//   TESSERA_ASSIGN_OR_RETURN(AccountedMemory block, pool.Take("layer 3",
//   bytes));
//   ...
//   pool.Give(std::move(block));
//   pool.Trim();                      // Frees what nobody uses.
//
// A block that is given back is kept for the next one of its size. The pool
// never holds more, in use and free together, than was in use at the same time
// at some moment since the last Trim: free blocks go first where a new one
// would exceed that. Not thread-safe.
#ifndef TESSERA_ZERO3_STATE_SHARDS_BUFFER_POOL_H_
#define TESSERA_ZERO3_STATE_SHARDS_BUFFER_POOL_H_

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/state_device.h"

namespace tessera::zero3 {

class BufferPool {
 public:
  // Blocks count against `device` as buffers. They are the rank's own memory:
  // in memory that ranks share each would map what it reads of the others', up
  // to (n - 1) / n of their blocks.
  explicit BufferPool(const StateDevice& device) : device_(device) {}

  // Uninitialised. ResourceExhausted if the budget has no room.
  absl::StatusOr<AccountedMemory> Take(std::string_view key, int64_t bytes);
  // A block of Take; nothing for an empty one.
  void Give(AccountedMemory block);
  // Frees all blocks that are not in use.
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

#endif  // TESSERA_ZERO3_STATE_SHARDS_BUFFER_POOL_H_
