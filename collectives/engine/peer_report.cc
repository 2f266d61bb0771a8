#include "collectives/engine/peer_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::collectives {
namespace {

std::string DescribePhase(PhaseWord word) {
  std::string text(PhaseName(word.phase()));
  if (word.peer() == PhaseWord::kNoPeer) return text;
  switch (word.phase()) {
    case Phase::kSending:
      return absl::StrCat(text, " to rank ", word.peer());
    case Phase::kReceiving:
      return absl::StrCat(text, " from rank ", word.peer());
    default:
      return absl::StrCat(text, ", waiting for rank ", word.peer());
  }
}

std::string DescribeWhere(const PeerReport& peer) {
  std::string text = absl::StrCat("rank ", peer.rank.value());
  if (peer.pid == 0 && peer.host.empty()) return text;
  absl::StrAppend(&text, " (");
  if (!peer.host.empty()) {
    absl::StrAppend(&text, "host ", peer.host, peer.pid != 0 ? ", " : "");
  }
  if (peer.pid != 0) absl::StrAppend(&text, "pid ", peer.pid);
  return absl::StrCat(text, ")");
}

bool IsGone(const PeerReport& peer) {
  return peer.state == PeerState::kDead || peer.state == PeerState::kDeparted;
}

}  // namespace

std::string DescribePeer(const PeerReport& peer, uint64_t my_sequence) {
  const std::string where = DescribeWhere(peer);
  const bool within = peer.phase.phase() != Phase::kIdle;
  if (IsGone(peer)) {
    return absl::StrCat(
        where,
        peer.state == PeerState::kDead ? " is dead" : " has left the group",
        "; its last operation was #", peer.sequence,
        within ? absl::StrCat(", ", DescribePhase(peer.phase)) : "");
  }
  if (peer.state == PeerState::kUnknown) {
    return absl::StrCat(where, " (the engine does not know its state)");
  }
  if (peer.sequence < my_sequence) {
    return absl::StrCat(
        where, " has not entered operation #", my_sequence,
        within ? "; it is in #" : "; its last was #", peer.sequence,
        within ? absl::StrCat(", ", DescribePhase(peer.phase)) : "");
  }
  return within
             ? absl::StrCat(where, " is in operation #", peer.sequence, ", ",
                            DescribePhase(peer.phase))
             : absl::StrCat(where, " has finished operation #", peer.sequence);
}

absl::Status MissingPeersError(const OperationContext& context,
                               std::span<const PeerReport> missing) {
  constexpr size_t kMaxNamed = 16;
  const Signature& signature = context.signature();
  std::vector<std::string> peers;
  for (const PeerReport& peer :
       missing.first(std::min(missing.size(), kMaxNamed))) {
    peers.push_back(DescribePeer(peer, signature.sequence));
  }
  if (missing.size() > kMaxNamed) {
    peers.push_back(absl::StrCat("and ", missing.size() - kMaxNamed, " more"));
  }
  const bool gone = std::any_of(missing.begin(), missing.end(), IsGone);
  const std::string message = absl::StrCat(
      DescribeSignature(signature), ", while ", DescribePhase(context.phase()),
      gone ? ": a rank is gone: " : ": the deadline passed: ",
      absl::StrJoin(peers, "; "));
  return gone ? absl::UnavailableError(message)
              : absl::DeadlineExceededError(message);
}

}  // namespace tessera::collectives
