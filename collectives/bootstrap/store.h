// Store: a key-value store through which the ranks of a job find each other.
//
//   store->Set("address/3", "10.0.0.3:4711");
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string address,
//       store->Get("address/3", absl::Now() + absl::Seconds(30)));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> all,
//                            AllGather(*store, "hosts", mine, deadline));
//
// A store is a small table in rank 0's process, for setting up a job and not
// for tensors. Values are immutable: a key is set once. Keys that begin with
// "tessera/" are reserved for the library.
//
// Thread-safe. After fork every call in the child fails.
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
#include "topology/rank.h"

namespace tessera::collectives {

using topology::Rank;

// The values are stable because they are sent between processes.
enum class MemberState : uint8_t {
  kNeverJoined = 0,
  kPresent = 1,
  kLeft = 2,  // Closed its store.
  kLost = 3,  // The connection broke, most likely because the process died.
};

// A rank of the job, for error messages.
struct JobMember {
  Rank rank;
  MemberState state = MemberState::kNeverJoined;
  std::string where = {};  // "host a, pid 12"; empty if unknown.

  bool IsGone() const {
    return state == MemberState::kLeft || state == MemberState::kLost;
  }
  friend bool operator==(const JobMember&, const JobMember&) = default;
};

// "rank 3 (host a, pid 12) is lost: its connection broke, ...", "rank 2 never
// joined the job", "rank 1 (host a, pid 9) has not joined", "rank 4 (host a,
// pid 7) has left the job".
std::string DescribeMember(const JobMember& member);

// "host a, pid 12".
std::string DescribePlace(const std::string& host, int64_t pid);

// The ranks that are missing from a wait.
struct MissingMembers {
  static constexpr size_t kMaxNamed = 16;
  int64_t count = 0;
  std::vector<JobMember>
      named;  // Up to kMaxNamed of them; ranks that are gone come first.

  // True if one of them has left or is lost.
  bool AnyGone() const { return !named.empty() && named.front().IsGone(); }
  friend bool operator==(const MissingMembers&,
                         const MissingMembers&) = default;
};

// "rank 2 (host a, pid 9) has not joined and rank 5 never joined the job",
// "rank 1 ..., rank 2 ... and 12 more ranks". Lists only ranks that are gone if
// there are any.
std::string DescribeMissing(const MissingMembers& absence);

inline constexpr size_t kMaxStoreKeyBytes = 256;
inline constexpr size_t kMaxStoreValueBytes = size_t{1} << 20;

class Store {
 public:
  virtual ~Store() = default;

  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Sets a key. Setting the same value again is allowed; AlreadyExists if the
  // key has another value, InvalidArgument if the key is empty or longer than
  // kMaxStoreKeyBytes or the value is longer than kMaxStoreValueBytes,
  // ResourceExhausted if the table is full, Unavailable if rank 0 is gone,
  // DeadlineExceeded if it does not answer within 30 s.
  absl::Status Set(std::string_view key, std::string_view value) {
    return SetFor(0, key, value, absl::Now() + absl::Seconds(30));
  }

  // Like Set, but the entry is erased after `reads` reads (0: never), and rank
  // 0 must answer by the deadline.
  virtual absl::Status SetFor(int64_t reads, std::string_view key,
                              std::string_view value, absl::Time deadline) = 0;

  // Waits until the key is set and returns its value. DeadlineExceeded, or
  // Unavailable if rank 0 is gone. With a deadline in the past it returns a
  // value that is already set.
  absl::StatusOr<std::string> Get(std::string_view key, absl::Time deadline) {
    return GetFrom(kAnyRank, key, deadline);
  }

  // Like Get for a key that only rank `owner` sets: fails at once with
  // Unavailable if that rank left or was lost without having set it.
  virtual absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                              absl::Time deadline) = 0;
  static constexpr Rank kAnyRank = Rank(-1);

  // Erases the keys `prefix` + rank for all `ranks`. Missing keys are ignored.
  virtual absl::Status Erase(std::string_view prefix,
                             std::span<const Rank> ranks,
                             absl::Time deadline) = 0;

  // Waits until each of `ranks` has set the key `prefix` + rank, or has joined
  // if the prefix is empty. Returns the missing ranks: none on success; at the
  // deadline, or as soon as a missing rank is gone, all ranks that have not set
  // their keys. At most 2^18 ranks.
  virtual absl::StatusOr<MissingMembers> AwaitAll(std::string_view prefix,
                                                  std::span<const Rank> ranks,
                                                  absl::Time deadline) = 0;
};

// Gathers every member's text, in the order of `members`: distinct ranks of the
// job including this one, the same list on all of them. A name is used once per
// job. The first member collects and distributes, so the number of messages is
// linear in the number of members. Each text may have up to
// kMaxStoreValueBytes. If members are missing at the deadline
// (DeadlineExceeded), or leave or die before (Unavailable, at once), every
// member gets an error that names them, with host and pid if known. It may
// return one second after the deadline if rank 0 does not answer.
absl::StatusOr<std::vector<std::string>> AllGather(
    Store& store, std::span<const Rank> members, std::string_view name,
    std::string_view mine, absl::Time deadline);

// AllGather among all ranks of the job.
absl::StatusOr<std::vector<std::string>> AllGather(Store& store,
                                                   std::string_view name,
                                                   std::string_view mine,
                                                   absl::Time deadline);

// Waits until every rank of the job has called it with this name. Errors as
// AllGather.
absl::Status Barrier(Store& store, std::string_view name, absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_H_
