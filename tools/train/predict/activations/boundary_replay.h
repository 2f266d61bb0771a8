// BoundaryReplay: the tensors between stages that a rank's executor holds, as
// step_runner.h and messenger.h go through its list.
//
//   BoundaryReplay replay(plan.lowered(), rank, bytes);
//   replay.peak();
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_BOUNDARY_REPLAY_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_BOUNDARY_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace tessera::train {

class BoundaryReplay {
 public:
  // `schedule` has its sends and receives; all tensors have `bytes` bytes.
  BoundaryReplay(const pipeline::Schedule& schedule, int32_t rank,
                 int64_t bytes);

  // In bytes. Sends that are started count until the executor must wait for
  // them; they may be over earlier.
  int64_t peak() const { return peak_ * bytes_; }

 private:
  struct Peer {
    int64_t sends = 0;     // Under way.
    int64_t receives = 0;  // Posted ahead.
    int64_t left = 0;      // Receives that are not posted.
  };

  void CountReceives();
  void Do(const pipeline::Action& action);
  void PostAhead(Peer& peer);
  void Send(Peer& peer);
  void Receive(Peer& peer);
  void Release(int32_t stage);
  void Hold(int64_t more);
  Peer& PeerOf(const pipeline::Action& action);
  bool HasStage(int32_t stage) const {
    return stage >= 0 && stage < schedule_.map.stages();
  }

  const pipeline::Schedule& schedule_;
  const std::vector<pipeline::Action>& actions_;
  const int64_t bytes_;
  const bool starts_;  // Messages are started, not sent in place.
  std::vector<Peer> peers_;
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_BOUNDARY_REPLAY_H_
