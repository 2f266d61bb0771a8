// ShardPrefetch: brings the shards of a state near before they are used: one
// offload::Prefetcher for each tier that cannot show its blocks in place,
// shared by all stores of the state, so that the order of uses of a whole step
// is one order.
//
//   auto prefetch = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
//       .near_bytes = 64 << 20, .device = device});
//   TESSERA_RETURN_IF_ERROR(prefetch->BeginStep());   // gathers, optimizer ...
//   TESSERA_ASSIGN_OR_RETURN(ShardTraffic traffic, prefetch->EndStep());
//
// In the first step, and outside of steps, what stores announce is read ahead;
// later steps follow the order of the step before. One thread at a time.
#ifndef TESSERA_ZERO3_STATE_SHARDS_SHARD_PREFETCH_H_
#define TESSERA_ZERO3_STATE_SHARDS_SHARD_PREFETCH_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/tier/memory_tier.h"
#include "zero3/state/shards/state_device.h"

namespace tessera::offload {
class Prefetcher;
}  // namespace tessera::offload

namespace tessera::zero3 {

// What a step had to do with tiers. Blocks that are used in place are not in
// it.
struct ShardTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t stall_ns = 0;  // spent waiting for blocks
  // What no order of reads avoids with this near memory and the best bandwidth
  // that was measured (offload/prefetch/plan/load_bound.h).
  int64_t least_stall_ns = 0;
  int64_t near_bytes = 0;

  // The sum of both; of near_bytes the larger.
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
    // Near memory for each tier. More where blocks in use at once need more.
    int64_t near_bytes = 1;
    bool reads_ahead = true;
    // Gives out the near memory, which counts as buffers.
    StateDevice device;
  };

  explicit ShardPrefetch(const Options& options);
  ~ShardPrefetch();

  // That of `tier`, which outlives this. ResourceExhausted where the device
  // has no room for its near memory.
  absl::StatusOr<offload::Prefetcher*> For(offload::MemoryTier& tier);

  // Nothing where a step is under way.
  absl::Status BeginStep();
  // FailedPrecondition while a block is open. Zeros where no step is under
  // way.
  absl::StatusOr<ShardTraffic> EndStep();

 private:
  const Options options_;
  bool in_step_ = false;
  std::map<offload::MemoryTier*, std::unique_ptr<offload::Prefetcher>>
      prefetchers_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_SHARD_PREFETCH_H_
