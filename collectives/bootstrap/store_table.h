// StoreTable: the table behind every Store: entries, who waits for them, and
// where each rank is. In rank 0's process, or shared by threads.
//
// Nothing here blocks: a wait is a callback, called once: before the function
// returns, or later from the thread that ends the wait. Callbacks must not
// block; they may call the table. Thread-safe.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collectives/bootstrap/seat.h"

namespace tessera::collectives::bootstrap {

// What all ranks together may leave in the table.
struct TableLimits {
  int64_t entries = int64_t{1} << 18;
  int64_t bytes = int64_t{256} << 20;
  int64_t waits = int64_t{1} << 18;
};

class StoreTable {
 public:
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using AwaitDone = std::function<void(absl::StatusOr<Absence>)>;
  using Ticket = uint64_t;

  // Every rank below `size` has a seat that nobody has taken.
  explicit StoreTable(int64_t size, TableLimits limits = {});

  int64_t size() const { return size_; }

  // As Store's functions of these names.
  absl::Status Set(int64_t reads, std::string_view key, std::string_view value);
  Ticket Get(Rank owner, std::string_view key, GetDone done);
  void Erase(std::string_view prefix, std::span<const Rank> ranks);
  Ticket AwaitAll(std::string_view prefix, std::span<const Rank> ranks,
                  AwaitDone done);
  // Who is absent now.
  absl::StatusOr<Absence> FindAbsent(std::string_view prefix,
                                     std::span<const Rank> ranks);

  // Ends a wait without calling its callback. False where it was called, or is
  // being called now.
  bool Cancel(Ticket ticket);

  // Takes, or leaves, a seat. AlreadyExists where it is taken or was.
  absl::Status TakeSeat(Rank rank, std::string where);
  void LeaveSeat(Rank rank, SeatState state);
  Seat seat(Rank rank) const;

  // Whether an entry with a number of reads still has some left.
  bool HasUnread() const;

  // Ends every wait, and every later call, with `reason`.
  void Close(absl::Status reason);

 private:
  struct Entry {
    std::string value;
    int64_t reads_left = 0;  // 0: no end of them.
  };
  struct Getter {
    Rank owner;
    std::string key;
    GetDone done;
  };
  // A wait for ranks: `keys` are those not set yet; ranks where by_seat.
  struct Watch {
    std::string prefix;
    std::vector<Rank> ranks;
    absl::flat_hash_set<int64_t> missing;
    AwaitDone done;
  };
  using Calls = std::vector<std::function<void()>>;

  absl::Status CheckRoom(std::string_view key, int64_t bytes) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Why a Get need not wait; OK where it must.
  absl::Status CheckGet(Rank owner, std::string_view key) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWait() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsThere(std::string_view prefix, Rank rank) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Absence Absent(std::string_view prefix, std::span<const Rank> ranks) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::string Read(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeGetters(std::string_view key, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeWatches(std::string_view key, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatch(Ticket ticket, absl::StatusOr<Absence> result, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailGetter(Ticket ticket, const absl::Status& status, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SeatChanged(Rank rank, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t size_;
  const TableLimits limits_;
  mutable absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unread_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Getter> getters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<Ticket>> getters_of_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Watch> watches_ ABSL_GUARDED_BY(mutex_);
  std::vector<Seat> seats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_
