// NearMemory: keeps blocks of a far tier in near memory (internal: use
// prefetcher.h); and the options of a prefetcher.
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
#include "offload/prefetch/load_bound.h"
#include "offload/prefetch/near_pool.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

// The options of a Prefetcher.
struct PrefetchOptions {
  int64_t budget = 0;  // bytes of near memory, positive
  // If true, raises the budget permanently when the blocks in use leave no
  // memory for a requested one. If false, Use returns ResourceExhausted.
  bool grows = false;
  std::shared_ptr<MemoryResource> resource = HostMemory();
  // A device that also uses near memory, until the events passed to Done, and
  // that checks the prefetcher's own accesses to it. Null: none.
  Device* device = nullptr;
  // If not null, reserves the whole budget here, as Purpose::kBuffers.
  std::shared_ptr<Accounting> accounting = {};
  int look_ahead = 16;  // how far loads run ahead, in uses
  // The maximum number of transfers in flight.
  int most_loads = 8;
  int most_stores = 8;
  // The number of threads that start transfers. A tier that copies in the
  // caller's thread (host) transfers this many blocks at once.
  int threads = 1;
  bool prefetch = true;  // false: loads every block when it is used
  // The tier's bandwidth, for the bound. 0: uses the best measurement of the
  // steps so far.
  int64_t load_bytes_per_second = 0;
};

// The transfers in one direction: how many are in flight, their bytes and their
// time. Times are from one monotonic clock. Not safe for concurrent use.
class Flow {
 public:
  explicit Flow(int most) : most_(most) {}

  int in_flight() const { return in_flight_; }
  bool HasRoom() const { return in_flight_ < most_; }

  void Start(int64_t now_ns) {
    Count(now_ns);
    ++in_flight_;
  }
  // One transfer ended and has moved `bytes` (0 if it failed).
  void Finish(int64_t now_ns, int64_t bytes) {
    Count(now_ns);
    --in_flight_;
    bytes_ += bytes;
  }

  // Since construction: the bytes moved, and the time with at least one
  // transfer in flight.
  int64_t bytes() const { return bytes_; }
  int64_t busy_ns(int64_t now_ns) const {
    return busy_ns_ + (in_flight_ > 0 ? now_ns - since_ns_ : 0);
  }

 private:
  void Count(int64_t now_ns) {
    busy_ns_ = busy_ns(now_ns);
    since_ns_ = now_ns;
  }

  const int most_;
  int in_flight_ = 0;
  int64_t since_ns_ = 0;  // when busy_ns_ was last updated
  int64_t busy_ns_ = 0;
  int64_t bytes_ = 0;
};

// Keeps blocks of a far tier in near memory, and loads and stores them with its
// own threads. Prefetcher is built on it.
//
// It expects uses: those of a step in order (Follow), or announced ones. Loads
// run ahead in this order, over the next `look_ahead` uses. If memory is
// missing, the block with the farthest next use is evicted, if that is later
// than the use to load for; among blocks that are not expected any more, the
// one that a repetition of the order needs last. A dirty victim is stored
// first; while memory is short, a block is stored as soon as the use that
// changed it ends, unless one of the next uses needs it. Blocks are evicted
// only until half of near memory has the blocks of the next uses: the other
// half keeps blocks for later uses, and holds those in use and those being
// stored.
//
// If a missing block is acquired, it is loaded next, before all others and
// beyond these limits.
//
// Threads. PrefetchOptions::threads threads call the tier's Start functions,
// which may copy or compress before they return; the tier's threads report
// completion. The functions of this class must be called one at a time.
class NearMemory : public std::enable_shared_from_this<NearMemory> {
 public:
  enum class Found { kNear, kOnTheWay, kMissing };
  struct Acquired {
    std::span<std::byte> bytes;
    Found found = Found::kMissing;
    bool in_order = false;  // It was the next expected use.
  };
  struct Traffic {
    int64_t bytes_loaded = 0;
    int64_t load_busy_ns = 0;
    int64_t bytes_stored = 0;
  };

  // Starts the threads.
  NearMemory(MemoryTier& far, PrefetchOptions options);
  ~NearMemory();
  // Stores dirty blocks, waits for transfers in flight, joins the threads and
  // frees all memory. Must be the last call.
  void Close();

  // Expects the uses of `order` from now on, and no others; if it is empty,
  // those that are announced. Changes nothing if the tier does not have a block
  // (returns its error) or one exceeds the budget (ResourceExhausted).
  absl::Status Follow(std::span<const BlockUse> order);
  // The uses of the order that are still expected.
  int64_t uses_left() const;

  // Waits for the block and marks it as in use. The block's next expected use,
  // and in an order all uses before it, are then over. With `overwrite` a far
  // block is not loaded and its bytes are undefined.
  absl::StatusOr<Acquired> Acquire(std::string_view key,
                                   bool overwrite = false);
  // Expects a use of the block, after previously announced blocks. Ignored
  // while an order is followed, and if the tier does not have the block.
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

  // PrefetchOptions::budget, or more if it has grown.
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
  struct ExpectedUse;

  Block& At(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if the block is unknown; FailedPrecondition, naming the call, if it is
  // in use.
  absl::StatusOr<Block*> FindIdle(std::string_view key,
                                  std::string_view call) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Expect(Block& block, bool overwrite)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next expected use of the block is over.
  void Pass(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  std::optional<Job> Ahead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Wanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeMemory(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Job> Load(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Frees `bytes`, or starts the stores that will, by evicting blocks whose
  // next use is after `needed_at`. True if they are free.
  bool MakeRoom(int64_t bytes, int64_t needed_at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  const PrefetchOptions options_;
  mutable absl::Mutex mutex_;
  absl::CondVar work_;     // there may be a job
  absl::CondVar changed_;  // a transfer has ended
  NearBufferPool pool_ ABSL_GUARDED_BY(mutex_);
  Flow loads_ ABSL_GUARDED_BY(mutex_);
  Flow stores_ ABSL_GUARDED_BY(mutex_);
  // Entries stay: other members point to them.
  std::map<std::string, std::unique_ptr<Block>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
  // By position. In an order, all positions before cursor_ are over.
  std::map<int64_t, ExpectedUse> expected_ ABSL_GUARDED_BY(mutex_);
  int64_t positions_ ABSL_GUARDED_BY(mutex_) = 0;  // Assigned since Follow.
  int64_t cursor_ ABSL_GUARDED_BY(mutex_) = 0;
  bool follows_order_ ABSL_GUARDED_BY(mutex_) = false;
  Block* demanded_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool demand_overwrites_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Reservation> grown_ ABSL_GUARDED_BY(mutex_);
  absl::Status demand_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<Block*> wanted_ ABSL_GUARDED_BY(mutex_);  // to store, in order
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_H_
