// Prefetcher: loads blocks of a tier into near memory before a step needs them.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Prefetcher> prefetcher,
//       Prefetcher::Create(file_tier, {.budget = 2LL << 30}));
//   for (...) {                                   // the first step records
//     TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
//     for (const std::string& key : order) {
//       TESSERA_ASSIGN_OR_RETURN(std::span<std::byte> block,
//                                prefetcher->Use(key));
//       Compute(block);
//       TESSERA_RETURN_IF_ERROR(prefetcher->Done(key, /*dirty=*/true));
//     }
//     TESSERA_ASSIGN_OR_RETURN(StepReport report, prefetcher->EndStep());
//   }
//   TESSERA_RETURN_IF_ERROR(prefetcher->Flush());
//
// The order of uses is given, or taken from the previous step. Loads run ahead
// of the uses in this order, by a fixed number of uses; to make room, the block
// with the farthest next use is evicted (near_memory.h). A step that deviates
// from the order is still correct: missing blocks are loaded at once, before
// expected ones, and the next step follows the new order.
//
// Outside of a step, and within the first one, blocks are loaded when they are
// used, or earlier in the order of Announce. Uses outside of steps are not
// recorded.
//
// Near blocks stay near across steps, dirty or not; dirty blocks are stored
// when they are evicted and at Flush. Until then the tier has the old
// bytes: call Flush before accessing the tier directly, and Invalidate after
// writing to it. Purposes and dtypes are preserved.
#ifndef TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_
#define TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "offload/prefetch/load_bound.h"
#include "offload/prefetch/near_memory.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

// Records the uses of a step.
//
//   StepRecorder recorder;
//   recorder.Ask(now_ns);
//   recorder.Begin("layer.0", bytes, now_ns);
//   std::vector<BlockUse> order = recorder.Take(now_ns);
//
// The compute of a use lasts from the arrival of its block until the next block
// is requested, or the end of the step. Not safe for concurrent use.
class StepRecorder {
 public:
  // A block is requested, which ends the compute of the previous use. If no
  // Begin follows, that compute continues.
  void Ask(int64_t now_ns) { asked_ns_ = now_ns; }
  // The requested block has arrived.
  void Begin(std::string_view key, int64_t bytes, int64_t now_ns,
             bool overwrite = false);
  // Returns the recorded uses and empties the recorder.
  std::vector<BlockUse> Take(int64_t now_ns);

 private:
  std::vector<BlockUse> order_;
  int64_t asked_ns_ = 0;
  int64_t began_ns_ = 0;
};

// Times are nanoseconds.
struct StepReport {
  bool planned = false;      // the step followed an order
  absl::Status plan_status;  // why the recorded order is not followed
  int64_t uses = 0;
  int64_t hits = 0;        // the block was near
  int64_t late = 0;        // the block was being loaded
  int64_t missing = 0;     // loaded on demand
  int64_t deviations = 0;  // uses that were not the next in the order
  int64_t bytes_loaded = 0;
  int64_t bytes_stored = 0;
  int64_t step_ns = 0;
  int64_t stall_ns = 0;    // in Use
  int64_t compute_ns = 0;  // from each Use to the next
  // StepBound of the uses, with the measured computes and
  // load_bytes_per_second.
  int64_t bound_ns = 0;
  int64_t load_bytes_per_second = 0;  // 0: nothing was ever loaded
  absl::Status store_status;  // the error of a block that could not be stored

  // The stall that no order of loads can avoid: the bound minus the compute
  // time.
  int64_t least_stall_ns() const {
    return bound_ns > compute_ns ? bound_ns - compute_ns : 0;
  }
  // 1 if the step was as fast as the bound.
  double share_of_bound() const {
    return step_ns == 0
               ? 1
               : static_cast<double>(bound_ns) / static_cast<double>(step_ns);
  }
};

// Not thread-safe. Starts threads, see PrefetchOptions (near_memory.h).
class Prefetcher {
 public:
  // `far` must outlive the prefetcher. InvalidArgument for options that are not
  // positive; ResourceExhausted if the accounting's budget is exceeded.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> Create(
      MemoryTier& far, PrefetchOptions options);
  // Stores dirty blocks (ignoring errors, unlike Flush) and waits for transfers
  // in flight, also in the middle of a step.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Starts to load the first blocks of the recorded order. FailedPrecondition
  // within a step.
  absl::Status BeginStep();
  // The same with a given order of keys. NotFound for a key that the tier does
  // not have, ResourceExhausted for a block larger than the budget; after an
  // error no step has begun.
  absl::Status BeginStep(std::span<const std::string> order);

  // Waits for the block and returns its bytes, which may be read and written
  // until Done. A block may have several uses at a time. A tier's error names
  // the key, and the next Use tries again. ResourceExhausted if the block is
  // larger than the budget or the blocks in use leave no memory; if a dirty
  // block cannot be stored to free memory, the error of that store. No data is
  // lost: a block that could not be stored stays near.
  absl::StatusOr<std::span<std::byte>> Use(std::string_view key) {
    return Use(key, Access::kUpdate);
  }
  enum class Access {
    kUpdate,
    kOverwrite,  // All bytes are overwritten: a missing block is not loaded.
  };
  absl::StatusOr<std::span<std::byte>> Use(std::string_view key, Access access);
  // Ends a use. `dirty` is true if the bytes were changed. If a device uses
  // them, its work ends at `last_use`; the prefetcher's threads wait for this
  // event before they store or overwrite the bytes.
  absl::Status Done(std::string_view key, bool dirty = false,
                    Event last_use = {});

  // Announces that `key` will be used soon, after previously announced blocks.
  // No effect while an order is followed, or if options.prefetch is false.
  void Announce(std::string_view key);

  // FailedPrecondition, and the step continues, while a block is in use.
  absl::StatusOr<StepReport> EndStep();

  // Stores every dirty block and waits. Returns the first error; blocks that
  // could not be stored stay near and dirty.
  absl::Status Flush();
  // Stores `key` if it is dirty, waits, and drops the near copy: the next use
  // reads the tier, whose codec may have rounded the values. If it cannot be
  // stored, returns the tier's error and keeps the block near.
  absl::Status PutAway(std::string_view key) { return near_->PutAway(key); }
  // Discards the near copy of `key`, dirty or not, because the tier has newer
  // bytes.
  absl::Status Invalidate(std::string_view key);

  bool in_step() const { return step_.has_value(); }
  // The error of a block that could not be stored and is still near, or OK.
  absl::Status store_status() const { return near_->store_status(); }
  // The bytes of near memory: the option's value, or more if it has grown.
  int64_t budget() const { return near_->budget(); }
  // The uses of the last finished step.
  const std::vector<BlockUse>& recorded() const { return recorded_; }

 private:
  struct Step {
    StepReport report;
    std::vector<NearBlock> near;  // when it began
    int64_t began_ns = 0;
    NearMemory::Traffic before;
  };

  Prefetcher(MemoryTier& far, PrefetchOptions options, Reservation room);
  absl::Status Start(std::vector<BlockUse> order, bool given);
  void Measure(const NearMemory::Traffic& now);
  int64_t Bound(const std::vector<BlockUse>& order) const;

  MemoryTier& far_;
  const PrefetchOptions options_;
  const Reservation room_;
  const std::shared_ptr<NearMemory> near_;
  StepRecorder recorder_;
  std::vector<BlockUse> recorded_;
  std::optional<Step> step_;
  int64_t load_speed_;  // bytes per second; 0: unknown
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_
