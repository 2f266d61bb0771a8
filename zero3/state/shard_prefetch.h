// ShardPrefetch: reads the shards of a state from tiers before they are used.
// It has one offload::Prefetcher per tier without in-place access, which all
// stores of the state share, so that it sees the uses of a whole step in order.
//
//   auto prefetch = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
//       .near_bytes = 64 << 20, .device = device});
//   TESSERA_RETURN_IF_ERROR(prefetch->BeginStep());   // gathers, optimizer ...
//   TESSERA_ASSIGN_OR_RETURN(ShardTraffic traffic, prefetch->EndStep());
//
// In the first step, and outside of steps, it reads the blocks that stores
// announce; in later steps it follows the order of the previous step. One
// thread at a time.
#ifndef TESSERA_ZERO3_STATE_SHARD_PREFETCH_H_
#define TESSERA_ZERO3_STATE_SHARD_PREFETCH_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/tier/memory_tier.h"
#include "zero3/state/state_device.h"

namespace tessera::offload {
class Prefetcher;
}  // namespace tessera::offload

namespace tessera::zero3 {

// The traffic of a step with tiers. Blocks that are used in place do not count.
struct ShardTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t stall_ns = 0;  // Time spent waiting for blocks.
  // A lower bound on the stall for any order of reads with this near memory and
  // the highest bandwidth measured (offload/prefetch/load_bound.h).
  int64_t least_stall_ns = 0;
  int64_t near_bytes = 0;  // The maximum of near memory.

  // Adds all fields, except for near_bytes, which becomes the larger one.
  void Add(const ShardTraffic& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    stall_ns += other.stall_ns;
    least_stall_ns += other.least_stall_ns;
    near_bytes = std::max(near_bytes, other.near_bytes);
  }
  friend bool operator==(const ShardTraffic&, const ShardTraffic&) = default;
};

class ShardPrefetch {
 public:
  struct Options {
    // Near memory for each tier. Grows if the blocks in use at once need more.
    int64_t near_bytes = 1;
    bool reads_ahead = true;
    // Allocates the near memory, which counts as buffers.
    StateDevice device;
  };

  explicit ShardPrefetch(const Options& options);
  ~ShardPrefetch();

  // The prefetcher of `tier`, which must outlive this. ResourceExhausted if the
  // device has too little room for its near memory.
  absl::StatusOr<offload::Prefetcher*> For(offload::MemoryTier& tier);

  // Does nothing during a step.
  absl::Status BeginStep();
  // FailedPrecondition while a block is open. Zeros outside of a step.
  absl::StatusOr<ShardTraffic> EndStep();

 private:
  const Options options_;
  bool in_step_ = false;
  std::map<offload::MemoryTier*, std::unique_ptr<offload::Prefetcher>>
      prefetchers_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARD_PREFETCH_H_
