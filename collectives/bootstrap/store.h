// Store: one rank's seat at the place where the ranks of a job meet.
//
//   store->Set("address/3", "10.0.0.3:4711");
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string address,
//       store->Get("address/3", absl::Now() + absl::Seconds(30)));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> all,
//                            AllGather(*store, "hosts", mine, deadline));
//
// A small table in rank 0's process for setting a job up; not a place for
// tensors. Every rank of the job has a seat. Values are immutable: a key is set
// once. Keys that begin with "tessera/" are the library's own.
//
// Threads: every function may be called by any thread at any time. After fork
// the seat is the parent's: in the child every call fails.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/seat.h"

namespace tessera::collectives {

inline constexpr size_t kMaxStoreKeyBytes = 256;
inline constexpr size_t kMaxStoreValueBytes = size_t{1} << 20;

class Store {
 public:
  virtual ~Store() = default;

  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Sets a key for good. Setting the same value again is fine; AlreadyExists
  // where the key has another value, InvalidArgument where the key is empty or
  // longer than kMaxStoreKeyBytes or the value longer than kMaxStoreValueBytes,
  // ResourceExhausted where the job's table is full, Unavailable where rank 0
  // is gone, DeadlineExceeded where it has not answered for 30 s.
  absl::Status Set(std::string_view key, std::string_view value) {
    return SetFor(0, key, value, absl::Now() + absl::Seconds(30));
  }

  // As Set, but the entry is gone after `reads` reads (0 means never), and rank
  // 0 has until the deadline to answer.
  virtual absl::Status SetFor(int64_t reads, std::string_view key,
                              std::string_view value, absl::Time deadline) = 0;

  // The value, waiting until somebody sets it. DeadlineExceeded, or Unavailable
  // where rank 0 is gone. A deadline that has passed still gets what is there.
  absl::StatusOr<std::string> Get(std::string_view key, absl::Time deadline) {
    return GetFrom(kAnyRank, key, deadline);
  }

  // As Get for a key that only rank `owner` sets: Unavailable, at once, where
  // that rank has left or is lost without having set it.
  virtual absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                              absl::Time deadline) = 0;
  static constexpr Rank kAnyRank = Rank(-1);

  // Erases the keys `prefix` + rank of every rank named. Those that are not
  // there do not matter.
  virtual absl::Status Erase(std::string_view prefix,
                             std::span<const Rank> ranks,
                             absl::Time deadline) = 0;

  // Waits until each of `ranks` has set the key `prefix` + rank and gives who
  // is absent: nobody, or at the deadline those that have not, or, at once,
  // those where one that has not is gone. With an empty prefix: until each is
  // present. At most 2^18 ranks of the job.
  virtual absl::StatusOr<Absence> AwaitAll(std::string_view prefix,
                                           std::span<const Rank> ranks,
                                           absl::Time deadline) = 0;
};

// Every member's text, in the order of `members`: distinct ranks of the job,
// this one among them, the same list on all of them. A name is used once in a
// job. The first member collects and hands out, so the messages grow with the
// members, not their square. Each text may have up to kMaxStoreValueBytes.
// Where members are missing at the deadline (DeadlineExceeded), or leave or die
// before (Unavailable, at once), the error names them, with host and pid where
// known, on every member. It may come a second after the deadline where
// rank 0 does not answer.
absl::StatusOr<std::vector<std::string>> AllGather(
    Store& store, std::span<const Rank> members, std::string_view name,
    std::string_view mine, absl::Time deadline);

// The same among all ranks of the job.
absl::StatusOr<std::vector<std::string>> AllGather(Store& store,
                                                   std::string_view name,
                                                   std::string_view mine,
                                                   absl::Time deadline);

// Returns when every rank of the job has called it with this name. Errors as
// AllGather.
absl::Status Barrier(Store& store, std::string_view name, absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_H_
