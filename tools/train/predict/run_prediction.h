// PredictRun: the needs of a run before it starts: memory of each rank by
// purpose, on its device and on the host, bytes along each axis, the bubble,
// and whether it fits into this machine.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   if (!prediction.fits()) prediction.advice.front().flag;
//
// Memory is counted by running the trainer's code on counted memory
// (README.md). Tests compare it with the runtime's own accounting. Bytes and
// floating-point operations throughout.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/pressure/system_memory.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/choose_device.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The memory that this machine has for a run; of the host, unless stated.
struct MachineRoom {
  int64_t bytes = 0;       // Available to all processes together.
  std::string limit = "";  // The limit: "machine", "cgroup /job memory.max".
  // Resident bytes of a process before it has a rank's state.
  int64_t process = 0;
  int64_t processors = 0;  // Shared by the ranks; 0: one per rank.
  // Unset: there is no GPU, or it is not known how much memory it has.
  std::optional<DeviceRoom> device = std::nullopt;
};

// Without `device`. Measures this process, and reads the tightest limit of the
// machine (MemAvailable) and of the control groups. Limits of single processes
// do not count. Errors of the source; NotFound if it has no such limit.
absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source);
absl::StatusOr<MachineRoom> ReadMachineRoom();

// Up to this world size every rank is predicted; above it, the first rank of
// each pipeline rank, which needs most.
inline constexpr int64_t kMostPredictedRanks = 64;

struct PredictOptions {
  // The memory of the machine; nullopt: of this one.
  std::optional<MachineRoom> room = std::nullopt;
  // The number of ranks on this machine; 0: all.
  int64_t ranks_here = 0;
};

// A change of flags that reduces the memory that exceeds a limit. Changes are
// sorted by what they save; if none suffices alone, they are combined one after
// the other as long as that helps.
struct MemoryAdvice {
  std::string flag;  // "--recompute=full"
  // With the change: on this machine, and on a GPU.
  int64_t needed = 0;
  int64_t device_needed = 0;
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
  // Ranks compute on GPUs, or on emulated devices, whose memory is the host's.
  bool on_gpu = false;
  bool on_emulated = false;
  // A copy of the state may be written to a checkpoint during a step. The
  // checkpoint after the last step needs no copy.
  bool trains_while_saving = false;
  // Resident bytes of all ranks on this machine; without the memory of GPUs.
  int64_t needed = 0;
  // Bytes of the GPU with most ranks, or of a rank's emulated device; 0 if the
  // processor computes.
  int64_t device_needed = 0;
  int64_t ranks_of_gpu = 0;
  std::vector<MemoryAdvice> advice;  // If it does not fit.

  bool fits() const { return fits_host() && fits_device().value_or(true); }
  bool fits_host() const { return needed <= room.bytes; }
  // Unset if ranks use no GPU, or if its memory is unknown.
  std::optional<bool> fits_device() const;
  // The rank that needs most memory of the host.
  const RankPrediction& largest() const;
  // The peak of a rank in the host's memory during steps and checkpoints.
  int64_t PeakOf(const RankPrediction& rank) const;
  // The bytes that a rank takes of its device: what the dry run held, at most
  // 4 GiB for what it does not count (validation, gaps between blocks), and
  // workspaces of libraries. Not the GPU's driver, outside of programs' reach.
  int64_t DeviceBytesOf(const RankPrediction& rank) const;
  int64_t HeadroomOf(const RankPrediction& rank) const;
  // The largest of these, which each rank takes at its start; 0 if the
  // processor computes.
  int64_t device_bytes() const;
  // Resident bytes of the rank's process.
  int64_t ResidentOf(const RankPrediction& rank) const {
    return room.process + PeakOf(rank);
  }
};

// Includes advice if the run does not fit. InvalidArgument as CheckSettings,
// and if the model cannot be split over the mesh.
absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options = {});

// PredictRun without advice.
absl::StatusOr<RunPrediction> MakePrediction(
    const Settings& settings, const model_files::ModelConfig& model,
    const PredictOptions& options);

// The places of model state that --device, --offload and --offload_dir select.
StateHomes HomesOf(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
