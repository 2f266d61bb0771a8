// NearMemory: keeps blocks of a far tier in near memory; and the pool of its
// buffers (NearBufferPool). Internal: use prefetcher.h.
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
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "offload/prefetch/flow.h"
#include "offload/prefetch/replacement.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"

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

// Keeps blocks of a far tier in near memory, and loads and stores them with its
// own threads. Prefetcher is built on it.
//
// With a plan (a Replacement), loads start in the plan's order as soon as their
// victims are evicted, as many at once as Flow allows. If a missing block is
// acquired, it is loaded next, before all others and even beyond the depth. If
// the uses deviate from the plan, the block that the plan needs last is
// evicted. Without a plan, announced blocks are loaded in the order of their
// announcements, into memory that no announced or used block occupies.
//
// Threads. Options::threads threads call the tier's Start functions, which may
// copy or compress before they return; the tier's threads report completion.
// The functions of this class must be called one at a time.

class NearMemory : public std::enable_shared_from_this<NearMemory> {
 public:
  struct Options {
    int64_t budget = 0;
    std::shared_ptr<MemoryResource> resource;
    Device* device = nullptr;  // Also uses the memory; null: none.
    int most_loads = 1;
    int most_stores = 1;
    int threads = 1;
    // Raises the budget if the blocks in use leave no free memory. The increase
    // is reserved in `accounting`, if it is not null.
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
  // Starts the threads. Call it once, before any other function.
  void Open();
  // Stores dirty blocks, waits for transfers in flight, joins the threads and
  // frees all memory. Must be the last call.
  void Close();

  // Follows `plan` from its first use. nullopt: no plan.
  void Follow(std::optional<Replacement> plan);

  // Waits for the block and marks it as in use. `position` is the index of this
  // use in the plan, ascending over calls; -1 if the plan does not contain it.
  // With `overwrite` a far block is not loaded and its bytes are undefined.
  absl::StatusOr<Acquired> Acquire(std::string_view key, int64_t position,
                                   bool overwrite = false);
  // Requests that the block be loaded, after previously announced blocks.
  // Ignored while a plan is followed, and if the tier does not have the block.
  void Announce(std::string_view key);
  // Ends one use. Device work that reads or writes the bytes ends at
  // `last_use`, which must be no earlier than that of earlier uses.
  // FailedPrecondition if the block is not in use.
  absl::Status Release(std::string_view key, bool dirty, Event last_use = {});
  // Stores dirty blocks. Returns the first error; that block stays dirty.
  absl::Status Flush();
  // Stores the block if it is dirty, then evicts it. If the store fails, the
  // block stays near and dirty.
  absl::Status PutAway(std::string_view key);
  // Evicts the block without storing it.
  absl::Status Forget(std::string_view key);

  // Options::budget, or more if it has grown.
  int64_t budget() const;
  // The blocks that are near or being loaded.
  std::vector<NearBlock> Blocks() const;
  std::vector<std::string> InUse() const;
  Traffic traffic() const;
  // The error of a dirty block whose store failed, or OK.
  absl::Status store_status() const;

 private:
  struct Block;
  struct Job;
  struct Plan;

  Block& At(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if the block is unknown; FailedPrecondition, naming the call, if it is
  // in use.
  absl::StatusOr<Block*> FindIdle(std::string_view key,
                                  std::string_view call) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Request(Block& block, bool overwrite)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Work();
  void Issue(Job job);
  void Finish(const Job& job, const absl::Status& status);
  std::optional<Job> NextJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called if no transfer will free memory: grows, or fails the request.
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
  // Evicts the block, or starts to store it and adds its bytes to `coming`.
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
  absl::CondVar work_;     // there may be a job
  absl::CondVar changed_;  // a transfer has ended
  NearBufferPool pool_ ABSL_GUARDED_BY(mutex_);
  Flow loads_ ABSL_GUARDED_BY(mutex_);
  Flow stores_ ABSL_GUARDED_BY(mutex_);
  // Entries stay: other members point to them.
  std::map<std::string, std::unique_ptr<Block>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Plan> plan_ ABSL_GUARDED_BY(mutex_);
  Block* demanded_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool demand_overwrites_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Block*> announced_ ABSL_GUARDED_BY(mutex_);  // Loads to start.
  int64_t announcements_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Reservation> grown_ ABSL_GUARDED_BY(mutex_);
  absl::Status demand_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<Block*> wanted_ ABSL_GUARDED_BY(mutex_);  // to store, in order
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_H_
