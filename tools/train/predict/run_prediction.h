// MachineRoom: how much memory this machine has for a run.
//
//   TESSERA_ASSIGN_OR_RETURN(const MachineRoom room, ReadMachineRoom());
//   if (needed > room.bytes) ...
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/pressure/memory_reading.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct MachineRoom {
  int64_t bytes = 0;       // That may be taken, by all processes together.
  std::string limit = "";  // Whose: "machine", "cgroup /job memory.max".
  // Resident, of a process before it has a rank's state.
  int64_t process = 0;
  int64_t processors = 0;  // That ranks share; 0: as many as they are.
};

// This process, and the tightest limit of the machine (MemAvailable) and of the
// control groups; limits of single processes do not count. Errors are the
// source's; NotFound where it has no such limit.
absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source);
absl::StatusOr<MachineRoom> ReadMachineRoom();

// RunPrediction: the memory, traffic and work of a run, predicted before it
// starts (predict_run.h). Bytes and floating-point operations throughout.

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

// AdviceFor: which flags to change so that a run needs less memory.

// Each change is tried by itself, those that leave most first; where none of
// them fits, one after the other, together with all before it, as long as it
// helps. Empty: nothing helps. `prediction` is of these settings. With
// `first_only` the list may end after its first element, which takes half of
// the time.
std::vector<MemoryAdvice> AdviceFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const RunPrediction& prediction,
                                    bool first_only = false);

// PredictRun: what a run needs and does, before it runs: memory of each rank by
// purpose, bytes along each axis, the bubble, and whether it fits into this
// machine.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   if (!prediction.fits()) prediction.advice.front().flag;
//
// Memory is counted by the rules that the runtime follows (README.md), and
// tests hold it against the runtime's own accounting.

// With advice where it does not fit. InvalidArgument as CheckSettings, and
// where the model does not fit the mesh.
absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
