#include "tools/train/predict/activations/boundary_replay.h"

#include <algorithm>

#include "pipeline/execute/options.h"

namespace tessera::train {

using pipeline::Action;
using pipeline::ActionKind;

BoundaryReplay::BoundaryReplay(const pipeline::Schedule& schedule, int32_t rank,
                               int64_t bytes)
    : schedule_(schedule),
      actions_(schedule.ranks[static_cast<size_t>(rank)]),
      bytes_(bytes),
      starts_(bytes >= pipeline::ExecutorOptions().start_from_bytes),
      peers_(static_cast<size_t>(schedule.map.ranks())) {
  CountReceives();
  for (Peer& peer : peers_) PostAhead(peer);
  for (const Action& action : actions_) Do(action);
}

// The rank at a message's other end.
BoundaryReplay::Peer& BoundaryReplay::PeerOf(const Action& action) {
  const bool comes_from_before = action.kind == ActionKind::kReceiveForward ||
                                 action.kind == ActionKind::kSendBackward;
  const int32_t other = action.stage + (comes_from_before ? -1 : 1);
  return peers_[static_cast<size_t>(
      schedule_.RankOf(other, action.microbatch))];
}

void BoundaryReplay::CountReceives() {
  for (const Action& action : actions_) {
    if (pipeline::Receives(action.kind)) ++PeerOf(action).left;
  }
}

void BoundaryReplay::Hold(int64_t more) {
  held_ += more;
  peak_ = std::max(peak_, held_);
}

void BoundaryReplay::PostAhead(Peer& peer) {
  const int64_t ahead = pipeline::ExecutorOptions().receives_ahead;
  while (starts_ && peer.receives < ahead && peer.left > 0) {
    Hold(1);
    ++peer.receives;
    --peer.left;
  }
}

void BoundaryReplay::Send(Peer& peer) {
  if (!starts_) return Hold(-1);
  if (peer.sends >= pipeline::ExecutorOptions().sends_in_flight) {
    Hold(-1);
    --peer.sends;
  }
  ++peer.sends;
}

void BoundaryReplay::Receive(Peer& peer) {
  if (peer.receives > 0) {
    --peer.receives;
  } else {
    Hold(1);
    --peer.left;
  }
  PostAhead(peer);
}

// The stage's input and the gradient of its output.
void BoundaryReplay::Release(int32_t stage) {
  Hold(-(HasStage(stage - 1) ? 1 : 0) - (HasStage(stage + 1) ? 1 : 0));
}

void BoundaryReplay::Do(const Action& action) {
  const ActionKind kind = action.kind;
  if (pipeline::Sends(kind)) return Send(PeerOf(action));
  if (pipeline::Receives(kind)) return Receive(PeerOf(action));
  if (!pipeline::Computes(kind)) return;
  if (kind == ActionKind::kForward && HasStage(action.stage + 1)) Hold(1);
  if (pipeline::GivesInputGradient(kind) && HasStage(action.stage - 1)) {
    Hold(1);
  }
  if (pipeline::GivesWeightGradient(kind)) Release(action.stage);
}

}  // namespace tessera::train
