// PeerTable: where the ranks of a group are, exchanged once when it is made.
//
//   const std::string mine = PeerTable::DescribeSelf();   // to all others
//   PeerTable peers = PeerTable::Of(texts_of_all_ranks);
#ifndef TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_
#define TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "topology/rank.h"

namespace tessera::collectives {

class PeerTable {
 public:
  static constexpr size_t kMaxDescriptionBytes = 96;

  // This process, for the others: its pid and its host's name. At most
  // kMaxDescriptionBytes.
  static std::string DescribeSelf();

  // From what DescribeSelf gave on every rank. What cannot be read is a rank of
  // which nothing is known.
  static PeerTable Of(std::span<const std::string> descriptions);

  // The table of a group of these members.
  PeerTable Restrict(std::span<const topology::Rank> members) const;

  // All in state kUnknown: these libraries do not say.
  const std::vector<PeerReport>& reports() const { return reports_; }

  // How many ranks run on the host of `rank`.
  int64_t RanksOnHostOf(topology::Rank rank) const;

  // MissingPeersError for `missing`; for all others where it is empty.
  absl::Status Missing(const OperationContext& context, topology::Rank self,
                       std::span<const topology::Rank> missing = {}) const;

 private:
  std::vector<PeerReport> reports_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_PEER_TABLE_H_
