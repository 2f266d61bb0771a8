// DirectCollectives: every collective over memory that the ranks reach.
//
//   message                                   way
//   fits into notes (up to 312 bytes)         by notes
//   large, all buffers reachable              zero copy
//   else                                      staged through windows
//
// Reductions are left folds in the order of ranks with one rounding, on every
// way: the bits of a result depend on nothing but the inputs.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_COLLECTIVES_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_COLLECTIVES_H_

#include "absl/status/status.h"
#include "collectives/host_memory/call.h"
#include "collectives/host_memory/group.h"
#include "collectives/host_memory/place_history.h"

namespace tessera::collectives::direct {

class DirectCollectives {
 public:
  explicit DirectCollectives(Group& group)
      : means_(group), history_(group.tuning().place_skips) {}

  // Carries out a valid collective; between Group::Enter and Group::Leave.
  absl::Status Run(const Operation& operation, OperationContext& context);

 private:
  Means means_;
  PlaceHistory history_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_COLLECTIVES_H_
