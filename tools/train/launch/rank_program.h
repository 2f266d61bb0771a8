// RankProgram: what each rank of a job does once all ranks have met.
//
//   const MakeRankProgram make =
//       [](const Settings& settings) -> absl::StatusOr<RankProgram> {
//     TESSERA_ASSIGN_OR_RETURN(auto data, OpenTrainingData(settings));
//     return [=](const RankContext& rank) { return Train(rank.world, data); };
//   };
//
// The seam between how ranks are started, watched and started again (this
// folder) and what they compute.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROGRAM_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROGRAM_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/loop/collective_log.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct RankContext {
  collectives::Communicator& world;
  // Of all collectives of the world and of groups made from it.
  std::shared_ptr<CollectiveLog> collectives = nullptr;
  // The rank calls it when it has taken a step; cheap.
  std::function<void()> on_step = [] {};
  // What the user sees of rank 0; null: nothing.
  std::ostream* progress = nullptr;
  bool is_terminal = false;  // Which a person looks at.
};

// One rank, from the joined world to its end; what rank 0 returns reaches the
// process that the user started, what others return does not. Ranks that are
// threads of a process call the same one at once.
using RankProgram =
    std::function<absl::StatusOr<std::string>(const RankContext& rank)>;

// Called once in each process, before its ranks meet the others.
using MakeRankProgram =
    std::function<absl::StatusOr<RankProgram>(const Settings& settings)>;

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROGRAM_H_
