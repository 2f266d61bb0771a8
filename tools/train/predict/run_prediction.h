// Predicts the needs of a run before it starts: memory of each rank by purpose,
// on its device and on the host, bytes along each axis, the bubble, and whether
// the run fits into this machine.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   if (!prediction.fits()) prediction.advice.front().flag;
//
// Memory is counted by running the trainer's code on counted memory
// (README.md). Tests compare it with the runtime's own accounting. Units are
// bytes and floating-point operations.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/pressure/system_memory.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/choose_device.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The memory of this machine that is available to a run. Members describe the
// host unless stated otherwise.
struct MachineRoom {
  int64_t bytes = 0;       // Available to the sum of all processes.
  std::string limit = "";  // The limit: "machine", "cgroup /job memory.max".
  // Resident bytes of a process without a rank's state.
  int64_t process = 0;
  int64_t processors = 0;  // Shared by the ranks; 0: one per rank.
  // Unset if there is no GPU or its memory is unknown.
  std::optional<DeviceRoom> device = std::nullopt;
};

// Measures this process, and reads the tightest limit of the machine
// (MemAvailable) and of the control groups. Ignores limits of single processes.
// Leaves `device` unset. Returns errors of the source; NotFound if it has no
// such limit.
absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source);
absl::StatusOr<MachineRoom> ReadMachineRoom();

// Up to this world size every rank is predicted; above it, only the first rank
// of each pipeline rank, which needs most memory.
inline constexpr int64_t kMostPredictedRanks = 64;

struct PredictOptions {
  // The memory of the machine; nullopt: this machine.
  std::optional<MachineRoom> room = std::nullopt;
  // The number of ranks on this machine; 0: all.
  int64_t ranks_here = 0;
};

// A change of flags that reduces memory that exceeds a limit. Changes are
// sorted by their savings. If none suffices alone, they are combined one by one
// while that helps.
struct MemoryAdvice {
  std::string flag;  // "--recompute=full"
  // The bytes needed with the change, on this machine and on a GPU.
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
  int64_t ranks_like_each = 1;   // Ranks of the world per entry of `ranks`.
  std::string host_budget = "";  // DescribeHostBudget.

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
  // Each rank keeps copies of its own state and of another rank's
  // (checkpoint/memory_copies.h): the complete ones and the ones on their way.
  bool keeps_copies = false;
  // Resident bytes of all ranks on this machine, without the memory of GPUs.
  int64_t needed = 0;
  // Bytes of the GPU with most ranks, or of a rank's emulated device; 0 if the
  // processor computes.
  int64_t device_needed = 0;
  int64_t ranks_of_gpu = 0;
  std::vector<MemoryAdvice> advice;  // Empty if the run fits.

  bool fits() const { return fits_host() && fits_device().value_or(true); }
  bool fits_host() const { return needed <= room.bytes; }
  // Unset if ranks use no GPU or its memory is unknown.
  std::optional<bool> fits_device() const;
  // The rank that sends most bytes.
  const RankPrediction& busiest() const;
  // The peak of a rank in the host's memory during steps and checkpoints.
  int64_t PeakOf(const RankPrediction& rank) const;
  // Of it, the copies of --snapshot_every.
  int64_t CopiesOf(const RankPrediction& rank) const;
  // The device memory of a rank: the bytes held by the dry run, at most 4 GiB
  // of headroom for uncounted memory (validation, gaps between blocks), and the
  // workspaces of libraries. Excludes the GPU's driver, whose memory programs
  // cannot use.
  int64_t DeviceBytesOf(const RankPrediction& rank) const;
  int64_t HeadroomOf(const RankPrediction& rank) const;
  // The maximum of DeviceBytesOf, which each rank allocates at its start; 0 if
  // the processor computes.
  int64_t device_bytes() const;
  // Resident bytes of the rank's process.
  int64_t ResidentOf(const RankPrediction& rank) const {
    return room.process + PeakOf(rank);
  }
};

// Predicts a run, with advice if it does not fit. InvalidArgument for the same
// settings as CheckSettings, if the model cannot be split over the mesh, and if
// --host_budget is too small.
absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options = {});

// PredictRun without advice.
absl::StatusOr<RunPrediction> MakePrediction(
    const Settings& settings, const model_files::ModelConfig& model,
    const PredictOptions& options);

// The memory for each part of the state that --device, --offload and
// --offload_dir select.
StateHomes HomesOf(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RUN_PREDICTION_H_
