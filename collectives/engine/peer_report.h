// PeerReport: what a rank knows of another one, for error messages.
#ifndef TESSERA_COLLECTIVES_ENGINE_PEER_REPORT_H_
#define TESSERA_COLLECTIVES_ENGINE_PEER_REPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "topology/rank.h"

namespace tessera::collectives {

enum class PeerState : uint8_t {
  kUnknown,  // The engine cannot tell.
  kAlive,
  kDead,      // Its process has ended.
  kDeparted,  // It has closed its communicator.
};

struct PeerReport {
  topology::Rank rank = {};
  PeerState state = PeerState::kUnknown;
  std::string host = {};  // Empty where not known.
  int64_t pid = 0;        // 0 where not known.
  uint64_t sequence = 0;  // Of the collective that it entered last.
  PhaseWord phase = {};   // kIdle: it has left that collective.
};

// "rank 3 (host a, pid 71) is dead; its last operation was #12",
// "rank 3 (pid 71) has not entered operation #12; its last was #11",
// "rank 3 (pid 71) is in operation #12, receiving from rank 2".
std::string DescribePeer(const PeerReport& peer, uint64_t my_sequence);

// The error for a wait that ended without `missing`: DeadlineExceeded, or
// Unavailable where one of them is dead or departed. Names the operation of
// `context`, its phase, how long it had, and every missing peer.
absl::Status MissingPeersError(const OperationContext& context,
                               std::span<const PeerReport> missing);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_PEER_REPORT_H_
