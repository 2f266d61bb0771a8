// StoreTable: the key-value table behind every Store. Also the checks and
// message formats shared by the store's client and server.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "topology/rank.h"

namespace tessera::collectives {

// InvalidArgument if a key is empty or too long, the value is too long, or the
// number of reads is negative.
absl::Status CheckKey(std::string_view key);
absl::Status CheckEntry(int64_t reads, std::string_view key,
                        std::string_view value);
// InvalidArgument if a list of ranks or the prefix is too long, or a rank is
// out of range.
absl::Status CheckRankList(std::string_view prefix, std::span<const Rank> ranks,
                           int64_t size);

// FailedPrecondition if this process is not `owner`, which joined as `rank`,
// but its child.
absl::Status CheckOwner(Rank rank, pid_t owner);

// The key in quotes, escaped and shortened, for error messages.
std::string ShowKey(std::string_view key);

// The body of kHello and kWelcome, in which each side describes itself.
struct HelloBody {
  int64_t world_size = 0;
  int64_t pid = 0;

  friend bool operator==(const HelloBody&, const HelloBody&) = default;
};
std::string FormatHello(const HelloBody& hello);
// InvalidArgument if malformed, the size is less than 1 or the pid is negative.
absl::StatusOr<HelloBody> ParseHello(std::string_view value);

// A list of at most kMaxListedRanks ranks less than 2^32.
inline constexpr size_t kMaxListedRanks = size_t{1} << 18;
std::string FormatRanks(std::span<const topology::Rank> ranks);
// InvalidArgument if the value has a partial rank.
absl::StatusOr<std::vector<topology::Rank>> ParseRanks(std::string_view value);

// The encoding of missing ranks. InvalidArgument if malformed: a count less
// than the number of named ranks, too many named ranks, or an unknown state.
std::string FormatMissingMembers(const MissingMembers& absence);
absl::StatusOr<MissingMembers> ParseMissingMembers(std::string_view value);

// A value that one thread sets and another thread waits for.
//
//   const auto shot = std::make_shared<OneShot<int>>();
//   table.Get(..., [shot](int value) { shot->Put(value); });
//   std::optional<int> value = shot->Take(deadline);
template <typename T>
class OneShot {
 public:
  void Put(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    is_there_.notify_all();
  }

  // Waits for the value; nullopt at the deadline.
  std::optional<T> Take(absl::Time deadline) {
    const absl::Duration left =
        std::min(deadline - absl::Now(), absl::Hours(24 * 365));
    std::unique_lock lock(mutex_);
    is_there_.wait_for(lock, absl::ToChronoNanoseconds(left),
                       [this] { return value_.has_value(); });
    return std::exchange(value_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_there_;
  std::optional<T> value_;
};

// The capacity of the table, for all ranks together.
struct TableLimits {
  int64_t entries = int64_t{1} << 18;
  int64_t bytes = int64_t{256} << 20;
  int64_t waits = int64_t{1} << 18;
};

// The entries, the waits for them, and the state of each rank. Lives in rank
// 0's process, or is shared by threads.
//
// No function blocks. A wait takes a callback, which is called once: before the
// function returns, or later by the thread that ends the wait. Callbacks must
// not block; they may call the table. Thread-safe.
class StoreTable {
 public:
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using AwaitDone = std::function<void(absl::StatusOr<MissingMembers>)>;
  using Ticket = uint64_t;

  // A table for ranks 0 to size - 1, none of which has joined.
  explicit StoreTable(int64_t size, TableLimits limits = {});

  int64_t size() const { return size_; }

  // These behave like the functions of Store with the same names.
  absl::Status Set(int64_t reads, std::string_view key, std::string_view value);
  Ticket Get(Rank owner, std::string_view key, GetDone done);
  void Erase(std::string_view prefix, std::span<const Rank> ranks);
  Ticket AwaitAll(std::string_view prefix, std::span<const Rank> ranks,
                  AwaitDone done);
  // The ranks that are currently missing.
  absl::StatusOr<MissingMembers> FindAbsent(std::string_view prefix,
                                            std::span<const Rank> ranks);

  // Cancels a wait without calling its callback. Returns false if the callback
  // was called or is being called.
  bool Cancel(Ticket ticket);

  // A rank joins or leaves. AlreadyExists if it has joined before.
  absl::Status TakeMember(Rank rank, std::string where);
  void LeaveSeat(Rank rank, MemberState state);
  JobMember member(Rank rank) const;

  // True if an entry with limited reads has reads left.
  bool HasUnread() const;

 private:
  struct Entry {
    std::string value;
    int64_t reads_left = 0;  // 0: unlimited.
  };
  struct Getter {
    Rank owner;
    std::string key;
    GetDone done;
  };
  // A wait for ranks. `missing` holds the ranks that have not yet set their key
  // or, with an empty prefix, joined.
  struct Watch {
    std::string prefix;
    std::vector<Rank> ranks;
    absl::flat_hash_set<int64_t> missing;
    AwaitDone done;
  };
  using Calls = std::vector<std::function<void()>>;

  absl::Status CheckRoom(std::string_view key, int64_t bytes) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The error of a Get that need not wait; OK if it must wait.
  absl::Status CheckGet(Rank owner, std::string_view key) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWait() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsThere(std::string_view prefix, Rank rank) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  MissingMembers Absent(std::string_view prefix,
                        std::span<const Rank> ranks) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::string Read(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeGetters(std::string_view key, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeWatches(std::string_view key, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatch(Ticket ticket, absl::StatusOr<MissingMembers> result,
                Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailGetter(Ticket ticket, const absl::Status& status, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void JobMemberChanged(Rank rank, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t size_;
  const TableLimits limits_;
  mutable absl::Mutex mutex_;
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unread_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Getter> getters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<Ticket>> getters_of_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Watch> watches_ ABSL_GUARDED_BY(mutex_);
  std::vector<JobMember> members_ ABSL_GUARDED_BY(mutex_);
};

// The Store of a rank in the process of the table.
class TableStore final : public Store {
 public:
  // Joins as `rank`; leaves when this object is destroyed. Errors as
  // StoreTable::TakeMember.
  static absl::StatusOr<std::unique_ptr<TableStore>> Take(
      std::shared_ptr<StoreTable> table, Rank rank, std::string where);
  ~TableStore() override;

  Rank rank() const override { return rank_; }
  int64_t size() const override { return table_->size(); }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override;
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override;
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override;
  absl::StatusOr<MissingMembers> AwaitAll(std::string_view prefix,
                                          std::span<const Rank> ranks,
                                          absl::Time deadline) override;

 private:
  TableStore(std::shared_ptr<StoreTable> table, Rank rank)
      : table_(std::move(table)), rank_(rank) {}

  const std::shared_ptr<StoreTable> table_;
  const Rank rank_;
  const pid_t pid_ = getpid();
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_TABLE_H_
