// SharedWindows: the shared memory that a rank's messages need with the engine
// shared_memory, in bytes.
//
//   const int64_t bytes = SharedWindows(mesh, place, traffic,
//                                       {.crowded = true});
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_

#include <cstdint>

#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/rank_traffic.h"
#include "topology/config/strategies.h"

namespace tessera::train {

struct SharingOptions {
  bool crowded = false;  // There are more ranks than processors.
  topology::CommunicationStrategy strategy =
      topology::CommunicationStrategy::kAdaptive;
};

// Computed with collectives/shared_memory/window_memory.h for the groups of
// TrainRank and ShardedState.
int64_t SharedWindows(const MeshSizes& mesh, const RankPlace& place,
                      const RankTraffic& traffic,
                      const SharingOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_
