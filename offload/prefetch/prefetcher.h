// StepRecorder: records the uses of a step.
//
//   StepRecorder recorder;
//   recorder.Ask(now_ns);
//   recorder.Begin("layer.0", bytes, now_ns);
//   recorder.End("layer.0", /*dirty=*/false);
//   std::vector<BlockUse> order = recorder.Take(now_ns);
//
// A use computes from the arrival of its block until the next block is
// requested, or the end of the step. Not safe for concurrent use.
#ifndef TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_
#define TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_

#include <cstddef>
#include <cstdint>
#include <map>
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
#include "offload/prefetch/near_memory.h"
#include "offload/prefetch/prefetch_plan.h"
#include "offload/prefetch/replacement.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

class StepRecorder {
 public:
  // A block is requested: the compute of the previous use is over. If no Begin
  // follows, the clock of that use continues.
  void Ask(int64_t now_ns) { asked_ns_ = now_ns; }
  // It is there.
  void Begin(std::string_view key, int64_t bytes, int64_t now_ns,
             bool overwrite = false);
  // Ends the latest use of `key` that has not ended; no effect if there is
  // none.
  void End(std::string_view key, bool dirty);

  int64_t uses() const { return static_cast<int64_t>(order_.size()); }

  // Returns the recorded uses and empties the recorder.
  std::vector<BlockUse> Take(int64_t now_ns);

 private:
  std::vector<BlockUse> order_;
  std::map<std::string, std::vector<size_t>, std::less<>> open_;  // uses
  int64_t asked_ns_ = 0;
  int64_t began_ns_ = 0;
};

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
// The order of uses is that of the previous step, or given. A PrefetchPlan from
// it, the measured times and the measured bandwidths decides what to load and
// evict; near_memory.h executes it, with as many transfers in flight as the
// measured throughput justifies (flow.h). A step that deviates from the order
// is still correct: missing blocks are loaded at once, before expected ones,
// and the next step follows the new order.
//
// Outside of a step, and within a first step, blocks are loaded when they are
// used, or before, in the order of Announce. Uses outside of steps are not
// recorded.
//
// Near blocks stay near from step to step, dirty or not; dirty blocks are
// stored when the plan evicts them and at Flush. Until then the tier has the
// old bytes: call Flush before reading or writing it directly, and Invalidate
// afterwards. Purposes and dtypes are preserved.

struct PrefetchOptions {
  int64_t budget = 0;  // bytes of near memory, above 0
  // Raises the budget permanently if blocks in use at once leave no memory for
  // a requested one. Otherwise: ResourceExhausted.
  bool grows = false;
  std::shared_ptr<MemoryResource> resource = HostMemory();
  // Uses near memory too, until the events that are given to Done, and checks
  // the prefetcher's own accesses to it. Null: there is none.
  Device* device = nullptr;
  // If not null, the whole budget is reserved here, as buffers.
  std::shared_ptr<Accounting> accounting = {};
  // The most transfers in flight; at first there are 2.
  int most_loads = 16;
  int most_stores = 8;
  // Threads that start transfers. A tier that works in the caller's thread
  // (host, compressed) moves this many blocks at once.
  int threads = 1;
  bool prefetch = true;  // false: every block is loaded when it is asked for
  // The tier's bandwidth, for the plan and the bound. 0: measured, as the best
  // of the steps so far.
  int64_t load_bytes_per_second = 0;
  int64_t store_bytes_per_second = 0;
};

// Times are nanoseconds.
struct StepReport {
  bool planned = false;      // an order was known
  absl::Status plan_status;  // why the recorded order could not be used
  int64_t uses = 0;
  int64_t hits = 0;        // there already
  int64_t late = 0;        // on the way
  int64_t missing = 0;     // loaded on demand
  int64_t deviations = 0;  // uses that were not the next of the order
  int64_t bytes_loaded = 0;
  int64_t bytes_stored = 0;
  int64_t step_ns = 0;
  int64_t stall_ns = 0;    // in Use
  int64_t compute_ns = 0;  // from each Use to the next
  // StepBound of the uses, with the measured computes and
  // load_bytes_per_second; and the plan's prediction, 0 without a plan or
  // bandwidths.
  int64_t bound_ns = 0;
  int64_t expected_ns = 0;
  int64_t load_bytes_per_second = 0;  // 0: nothing was ever loaded
  int64_t store_bytes_per_second = 0;
  int load_depth = 0;  // transfers that may be in flight now
  int store_depth = 0;
  absl::Status store_status;  // a block that could not be stored, and is near

  // The stall that no order of loads avoids: the part of the bound that is not
  // compute.
  int64_t least_stall_ns() const {
    return bound_ns > compute_ns ? bound_ns - compute_ns : 0;
  }
  // 1 is a step that nothing can beat.
  double share_of_bound() const {
    return step_ns == 0
               ? 1
               : static_cast<double>(bound_ns) / static_cast<double>(step_ns);
  }
};

// For one caller at a time. Starts threads, see PrefetchOptions.
class Prefetcher {
 public:
  // `far` outlives the prefetcher. InvalidArgument for options that are not
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
  // not have, ResourceExhausted for a block larger than the budget; no step has
  // begun then.
  absl::Status BeginStep(std::span<const std::string> order);

  // Returns the block's bytes, to read and write until Done; waits for them. A
  // block may be in use several times. A tier's error names the key, and the
  // next Use tries again. ResourceExhausted if the block is larger than the
  // budget or blocks in use leave no memory; if a dirty block cannot be stored
  // to free memory, the error of that store. Nothing is lost: a block that
  // could not be stored stays near.
  absl::StatusOr<std::span<std::byte>> Use(std::string_view key) {
    return Use(key, Access::kUpdate);
  }
  enum class Access {
    kUpdate,
    kOverwrite,  // All bytes are written anew: a missing block is not loaded.
  };
  absl::StatusOr<std::span<std::byte>> Use(std::string_view key, Access access);
  // `dirty`: its bytes were changed. If a device uses them, it has done so when
  // `last_use` happens, which threads of the prefetcher wait for before they
  // store or overwrite the bytes.
  absl::Status Done(std::string_view key, bool dirty = false,
                    Event last_use = {});

  // `key` will be used soon, after previously announced blocks. No effect while
  // a plan is followed, or without options.prefetch.
  void Announce(std::string_view key);

  // FailedPrecondition while a block is in use; the step then continues.
  absl::StatusOr<StepReport> EndStep();

  // Stores every dirty block and waits. Returns the first error; blocks that
  // could not be stored stay near and dirty.
  absl::Status Flush();
  // Stores `key` if it is dirty, waits, and drops the near copy: the next use
  // reads the tier, whose codec may have rounded. If it cannot be stored it
  // stays near, with the tier's error.
  absl::Status PutAway(std::string_view key) { return near_->PutAway(key); }
  // Forgets the near copy of `key`, dirty or not: the tier has newer bytes.
  absl::Status Invalidate(std::string_view key);

  bool in_step() const { return step_.has_value(); }
  // The error of a block that could not be stored, and is near; or OK.
  absl::Status store_status() const { return near_->store_status(); }
  // Bytes of near memory: the option's value, or more if it has grown.
  int64_t budget() const { return near_->budget(); }
  // The latest finished step.
  const std::vector<BlockUse>& recorded() const { return recorded_; }

 private:
  struct Step {
    StepReport report;
    std::vector<NearBlock> near;  // when it began
    std::vector<std::string> order;
    size_t cursor = 0;
    int64_t began_ns = 0;
    NearMemory::Traffic before;
  };

  Prefetcher(MemoryTier& far, PrefetchOptions options, Reservation room);
  absl::Status Start(std::vector<BlockUse> order, bool given);
  absl::StatusOr<PrefetchPlan> MakePlan(std::vector<BlockUse> order) const;
  // The index in the order, -1 if it is not ahead.
  int64_t Locate(std::string_view key) const;
  void Measure(const NearMemory::Traffic& now);
  int64_t Bound(const std::vector<BlockUse>& order) const;

  MemoryTier& far_;
  const PrefetchOptions options_;
  const Reservation room_;
  const std::shared_ptr<NearMemory> near_;
  StepRecorder recorder_;
  std::vector<BlockUse> recorded_;
  std::optional<Step> step_;
  int64_t load_speed_ = 0;  // bytes a second
  int64_t store_speed_ = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_PREFETCHER_H_
