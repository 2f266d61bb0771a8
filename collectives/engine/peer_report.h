// PeerReport: the known state of a peer, for error messages.
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
  kUnknown,  // The engine does not know.
  kAlive,
  kDead,      // Its process has ended.
  kDeparted,  // It has closed its communicator.
};

struct PeerReport {
  topology::Rank rank = {};
  PeerState state = PeerState::kUnknown;
  std::string host = {};  // Empty if unknown.
  int64_t pid = 0;        // 0 if unknown.
  uint64_t sequence = 0;  // Sequence number of the last collective entered.
  PhaseWord phase = {};   // kIdle: it has left that collective.
};

// "rank 3 (host a, pid 71) is dead; its last operation was #12",
// "rank 3 (pid 71) has not entered operation #12; its last was #11",
// "rank 3 (pid 71) is in operation #12, receiving from rank 2".
std::string DescribePeer(const PeerReport& peer, uint64_t my_sequence);

// The error of a wait for the peers `missing`: DeadlineExceeded, or Unavailable
// if one of them is dead or departed. The message names the operation of
// `context`, its phase and every missing peer.
absl::Status MissingPeersError(const OperationContext& context,
                               std::span<const PeerReport> missing);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_PEER_REPORT_H_
