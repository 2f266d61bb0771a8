// NearMemory: the blocks of a far tier that are near, and the threads that
// bring and store them. Prefetcher's engine; use prefetcher.h.
//
// A step follows a Replacement: its loads are started in order as soon as their
// victims are gone, as many at once as Flow allows. A block that is asked for
// and not on its way is loaded next, ahead of all others and beyond the depth.
// Where the step leaves the plan, room is made for what is asked for by
// evicting what the plan needs last. Without a plan what is announced is
// loaded, in that order, into room that nothing announced or in use has.
//
// Threads: `threads` of its own call the tier's Start functions, which may copy
// or compress before they return; the tier's own threads report the end. The
// functions here are for one caller at a time.
#ifndef TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_H_
#define TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/prefetch/buffer_pool.h"
#include "offload/prefetch/plan/block_use.h"
#include "offload/prefetch/plan/flow.h"
#include "offload/prefetch/plan/replacement.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

class NearMemory : public std::enable_shared_from_this<NearMemory> {
 public:
  struct Options {
    int64_t budget = 0;
    std::shared_ptr<MemoryResource> resource;
    int most_loads = 1;
    int most_stores = 1;
    int threads = 1;
    // Where blocks in use leave no room, the budget is raised, and counts
    // here; null: counted nowhere.
    bool grows = false;
    std::shared_ptr<Accounting> accounting = {};
  };
  enum class Found { kNear, kOnTheWay, kMissing };
  struct Acquired {
    std::span<std::byte> bytes;
    Found found = Found::kMissing;
  };
  struct Traffic {
    int64_t bytes_loaded = 0;
    int64_t load_busy_ns = 0;
    int64_t bytes_stored = 0;
    int64_t store_busy_ns = 0;
    int load_depth = 0;
    int store_depth = 0;
  };

  NearMemory(MemoryTier& far, Options options);
  ~NearMemory();
  // Starts the threads; once, before anything else.
  void Open();
  // Stores what is dirty, waits for what is in flight and ends the threads.
  void Close();

  // From now on `plan` is followed, from its first use on. Without one, blocks
  // are loaded when they are asked for.
  void Follow(std::optional<Replacement> plan);

  // Waits for the block, which is then in use. `position` is its use in the
  // plan, ascending; -1 for a use that the plan does not know. With
  // `overwrite` what is not there is not loaded: the bytes are undefined.
  absl::StatusOr<Acquired> Acquire(std::string_view key, int64_t position,
                                   bool overwrite = false);
  // It is wanted behind what was announced before. Nothing while a plan is
  // followed, or where the tier does not know the block.
  void Announce(std::string_view key);
  // One use less. FailedPrecondition where it is not in use.
  absl::Status Release(std::string_view key, bool dirty);
  // Stores what is dirty. The first error; what it concerns stays dirty.
  absl::Status Flush();
  // Stores the block where it is dirty, and forgets the near copy. Where it
  // cannot be stored it stays near and dirty.
  absl::Status PutAway(std::string_view key);
  // Forgets the near copy, dirty or not.
  absl::Status Forget(std::string_view key);

  // What Options say, or more where it has grown.
  int64_t budget() const;
  // What is near or on its way.
  std::vector<NearBlock> Blocks() const;
  std::vector<std::string> InUse() const;
  Traffic traffic() const;
  // What stands between a dirty block and the tier; OK where nothing does.
  absl::Status store_status() const;

 private:
  struct Block;
  struct Job;
  struct Plan;

  Block& At(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Request(Block& block, bool overwrite)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Work();
  void Issue(Job job);
  void Finish(const Job& job, const absl::Status& status);
  std::optional<Job> NextJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing makes room any more: grows, or fails the demand.
  void GrowOrRefuse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Grow(const Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Demanded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Planned() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Announced() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Wanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeMemory(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Load(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool MakeRoom(int64_t bytes, std::span<const Replacement::Eviction> planned,
                int64_t needed_at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts it, or has it stored first and adds its bytes to `coming`.
  void Free(Block& block, int64_t& coming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Block*> Victims(int64_t needed_at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t NextUse(const Block& block) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WantStored(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StoreAllDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FirstStoreError() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status NoRoom(const Block& block) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  MemoryTier& far_;
  const Options options_;
  mutable absl::Mutex mutex_;
  absl::CondVar work_;     // a job may be there
  absl::CondVar changed_;  // a transfer has ended
  BufferPool pool_ ABSL_GUARDED_BY(mutex_);
  Flow loads_ ABSL_GUARDED_BY(mutex_);
  Flow stores_ ABSL_GUARDED_BY(mutex_);
  // Entries stay: other members point to them.
  std::map<std::string, std::unique_ptr<Block>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Plan> plan_ ABSL_GUARDED_BY(mutex_);
  Block* demanded_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool demand_overwrites_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Block*> announced_ ABSL_GUARDED_BY(mutex_);  // not yet loading
  int64_t announcements_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Reservation> grown_ ABSL_GUARDED_BY(mutex_);
  absl::Status demand_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<Block*> wanted_ ABSL_GUARDED_BY(mutex_);  // to store, in order
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_H_
