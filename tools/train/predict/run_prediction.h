// RunPrediction: what a run needs and does, before it runs. predict_run.h makes
// it.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config/model_config.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/predict/room/machine_room.h"
#include "tools/train/predict/stage_work.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Up to so many ranks each is predicted; of more, the first of each pipeline
// rank, which has the most.
inline constexpr int64_t kMostPredictedRanks = 64;

struct PredictOptions {
  // What the machine has; not given: it is asked.
  std::optional<MachineRoom> room = std::nullopt;
  // How many of the ranks run on this machine; 0: all.
  int64_t ranks_here = 0;
};

// A flag to change so that less memory is needed.
struct MemoryAdvice {
  std::string flag;    // "--recompute=full"
  int64_t needed = 0;  // On this machine, then.
  bool fits = false;
  bool and_before = false;  // Together with the flags before it.
};

struct RunPrediction {
  MeshSizes mesh;
  std::string schedule;
  int64_t stages = 0;
  int64_t micro_batches = 0;
  int64_t parameters = 0;  // Of the model.

  std::vector<RankPrediction> ranks;
  int64_t ranks_like_each = 1;  // For how many ranks of the world each stands.

  double bubble = 0;  // PredictBubble.
  RunWork work;

  MachineRoom room;
  int64_t ranks_here = 0;
  bool shares_process = false;  // All ranks are threads of one.
  // A copy of the state may be on its way to a checkpoint while the next step
  // runs. The checkpoint behind the last step is written without a copy.
  bool trains_while_saving = false;
  // Of this machine, by the ranks on it: with what each process has anyway.
  int64_t needed = 0;
  std::vector<MemoryAdvice> advice;  // Where it does not fit.

  bool fits() const { return needed <= room.bytes; }
  // The one that needs most.
  const RankPrediction& largest() const;
  // Of a rank in a step or while a checkpoint is written, at its peak.
  int64_t PeakOf(const RankPrediction& rank) const;
  // Resident bytes of a process: the rank's, and what it has anyway.
  int64_t ResidentOf(const RankPrediction& rank) const {
    return room.process + PeakOf(rank);
  }
};

// Where --offload puts what.
StateHomes HomesOf(const Settings& settings);

// Without advice. InvalidArgument as CheckSettings, and where the model does
// not fit the mesh.
absl::StatusOr<RunPrediction> MakePrediction(
    const Settings& settings, const model_files::ModelConfig& model,
    const PredictOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
