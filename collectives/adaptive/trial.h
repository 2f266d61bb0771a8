// Trial: one way of one operation at one size, timed in turns with others.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_TRIAL_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_TRIAL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

struct Trial {
  OpKind kind = OpKind::kBarrier;
  Algorithm algorithm = Algorithm::kEngine;
  int64_t bytes = 0;   // Of the whole message.
  int64_t batch = 1;   // Operations in a turn.
  double seconds = 0;  // The result.
};

// The bytes of the whole message nearest to `bytes` that `ranks` ranks can
// part, at least an element for each; 0 for a barrier. Elements are f32.
int64_t TrialBytes(OpKind kind, int64_t bytes, int64_t ranks);

// Memory for the largest trial.
class TrialBuffers {
 public:
  TrialBuffers(int64_t max_bytes, int64_t ranks)
      : input_(static_cast<size_t>(max_bytes / 4 + ranks)),
        output_(input_.size()) {}

  Operation OperationOf(OpKind kind, int64_t bytes,
                        const Communicator& communicator);

 private:
  std::vector<float> input_;
  std::vector<float> output_;
};

// Runs every trial once untimed, then `turns` times in turns; sets the median
// over the turns of the slowest rank's seconds of one operation. A collective;
// results are the same on every rank. Trials are of algorithms that the group
// has.
absl::Status RunTrials(Communicator& communicator, TrialBuffers& buffers,
                       int64_t turns, std::span<Trial> trials);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_TRIAL_H_
