// Failure, the first error of a group, and PeerTable, the peer information of
// engines whose library provides none.
#ifndef TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_
#define TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "topology/rank.h"

namespace tessera::collectives {

// The first error of a group.
//
//   if (failure.failed()) return failure.status();
//   failure.Set(absl::AbortedError("..."));
//
// Thread-safe. failed() costs one load.
class Failure {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // OK until Set.
  absl::Status status() const {
    if (!failed()) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    return status_;
  }

  // Returns true if this is the first error; later ones are ignored. `status`
  // must not be OK.
  bool Set(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = status;
    failed_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  absl::Status status_;
};

// The hosts and processes of a group's ranks, exchanged once at creation.
//
//   const std::string mine = PeerTable::DescribeSelf();  // Sent to all others.
//   PeerTable peers = PeerTable::Of(texts_of_all_ranks);
class PeerTable {
 public:
  static constexpr size_t kMaxDescriptionBytes = 96;

  // This process's pid and host name as text of at most kMaxDescriptionBytes.
  static std::string DescribeSelf();

  // Builds the table from every rank's DescribeSelf. Malformed texts become
  // unknown ranks.
  static PeerTable Of(std::span<const std::string> descriptions);

  // The table of a subgroup.
  PeerTable Restrict(std::span<const topology::Rank> members) const;

  // All states are kUnknown, because these libraries do not report peer states.
  const std::vector<PeerReport>& reports() const { return reports_; }

  // The number of ranks on the host of `rank`.
  int64_t RanksOnHostOf(topology::Rank rank) const;

  // MissingPeersError for `missing`, or for all other ranks if it is empty.
  absl::Status Missing(const OperationContext& context, topology::Rank self,
                       std::span<const topology::Rank> missing = {}) const;

 private:
  std::vector<PeerReport> reports_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_
