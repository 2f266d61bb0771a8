// SharedWindows: what a rank has of shared memory because of its messages,
// where ranks are processes of one machine (engine shared_memory).
//
//   const int64_t bytes = SharedWindows(mesh, place, traffic,
//                                       {.crowded = true});
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_

#include <cstdint>

#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/rank_traffic.h"
#include "topology/config/options/strategies.h"

namespace tessera::train {

struct SharingOptions {
  bool crowded = false;  // There are fewer processors than ranks.
  topology::CommunicationStrategy strategy =
      topology::CommunicationStrategy::kAdaptive;
};

// By collectives/shared_memory/window_memory.h, for the groups of TrainRank and
// ShardedState.
int64_t SharedWindows(const MeshSizes& mesh, const RankPlace& place,
                      const RankTraffic& traffic,
                      const SharingOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_SHARED_WINDOWS_H_
