// RunPrediction: the memory, traffic and work of a run, predicted before it
// starts (predict_run.h). Bytes and floating-point operations throughout.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/machine_room.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/predict/stage_work.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Up to this world size every rank is predicted; above it, the first rank of
// each pipeline rank, which needs most.
inline constexpr int64_t kMostPredictedRanks = 64;

struct PredictOptions {
  // The memory of the machine; nullopt: of this one.
  std::optional<MachineRoom> room = std::nullopt;
  // The number of ranks on this machine; 0: all.
  int64_t ranks_here = 0;
  // See AdviceFor.
  bool first_advice_only = false;
};

// A change of flags that reduces memory.
struct MemoryAdvice {
  std::string flag;    // "--recompute=full"
  int64_t needed = 0;  // On this machine, with the change.
  bool fits = false;
  bool and_before = false;  // In addition to the previous advice.
};

struct RunPrediction {
  MeshSizes mesh;
  std::string schedule;
  int64_t stages = 0;
  int64_t micro_batches = 0;
  int64_t parameters = 0;  // Elements of the model.

  std::vector<RankPrediction> ranks;
  int64_t ranks_like_each = 1;  // Ranks of the world per entry of `ranks`.

  double bubble = 0;  // PredictBubble.
  RunWork work;

  MachineRoom room;
  int64_t ranks_here = 0;
  bool shares_process = false;  // Ranks are threads of one process.
  // A copy of the state may be written to a checkpoint during a step. The
  // checkpoint after the last step needs no copy.
  bool trains_while_saving = false;
  // Resident bytes of all ranks on this machine.
  int64_t needed = 0;
  std::vector<MemoryAdvice> advice;  // If it does not fit.

  bool fits() const { return needed <= room.bytes; }
  // The rank that needs most memory.
  const RankPrediction& largest() const;
  // The peak of a rank during steps and checkpoints.
  int64_t PeakOf(const RankPrediction& rank) const;
  // Resident bytes of the rank's process.
  int64_t ResidentOf(const RankPrediction& rank) const {
    return room.process + PeakOf(rank);
  }
};

// The places of model state that --offload and --offload_dir select.
StateHomes HomesOf(const Settings& settings);

// The prediction without advice. InvalidArgument as CheckSettings, and if the
// model cannot be split over the mesh.
absl::StatusOr<RunPrediction> MakePrediction(
    const Settings& settings, const model_files::ModelConfig& model,
    const PredictOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
