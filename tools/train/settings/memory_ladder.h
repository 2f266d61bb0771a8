// The memory ladder: a sequence of settings (rungs), each of which needs less
// memory and more time than the one before. --memory_strategy is the lowest
// rung of a run (AtLowestRung). Before the run starts, FitMemoryLimit
// climbs it by predictions (launch/memory_check.h). While the run executes, the
// worker climbs further if the ranks need more than predicted (loop/worker.h).
//
//   strategy     adds to the rungs before
//   basic        nothing
//   standard     --reduce=each, --recompute=selective, --recompute=full
//   aggressive   --zero=3, --reduce=each, --gather_ahead=0, --offload=all in
//                host memory; while running also --compression=lossless
//   extreme      --offload=all in files (--offload_dir), then activations too
//
// A rung changes results only by the order of summation. A rung is skipped if
// the settings already include it, if CheckSettings rejects it (--reduce below
// stage 2), or if it is predicted to save less than 1 %. The savings of
// compression depend on the values and cannot be predicted: only a running job
// with all its state in host memory tries it.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const MemoryRung rung,
//       ClimbMemoryLadder(settings, LadderUse::kBeforeStart, scratch, predict,
//                         [](const MemoryRung& rung) {
//                           return rung.needed < 300 << 20;
//                         }));
//   rung.flags;  // "--recompute=full --zero=3"
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_MEMORY_LADDER_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_MEMORY_LADDER_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/train/settings/settings.h"
#include "topology/config/strategies.h"

namespace tessera::train {

struct MemoryRung {
  topology::MemoryStrategy strategy = topology::MemoryStrategy::kBasic;
  Settings settings = {};
  // The flags that differ from the first rung; empty if none do.
  std::string flags = {};
  int64_t needed = 0;    // Bytes, predicted for these settings.
  int64_t as_given = 0;  // Bytes, predicted for the first rung.
};

enum class LadderUse { kBeforeStart, kWhileRunning };

// Predicts the resident host memory, in bytes, of all ranks on this machine.
using PredictNeed =
    absl::FunctionRef<absl::StatusOr<int64_t>(const Settings& settings)>;

// Returns the lowest rung for which `is_enough` is true, or the highest rung if
// there is none. The first rung is `from`. `scratch` is a directory for files.
// Skips rungs for which `predict` returns InvalidArgument; returns its other
// errors.
absl::StatusOr<MemoryRung> ClimbMemoryLadder(
    const Settings& from, LadderUse use, const std::string& scratch,
    PredictNeed predict, absl::FunctionRef<bool(const MemoryRung&)> is_enough);

// Returns `settings` with all changes of the rungs up to --memory_strategy, the
// lowest rung of a run, except those that CheckSettings rejects and
// compression.
Settings AtLowestRung(const Settings& settings, const std::string& scratch);

// The default directory for offloaded files: below --run_dir, or the directory
// for temporary files.
std::string ScratchOf(const Settings& settings);

// True if the predicted bytes plus a margin of 5 %, the accuracy of
// predictions, are within the limit.
constexpr bool FitsMemoryLimit(int64_t needed, int64_t limit) {
  return needed + needed / 20 <= limit;
}

// True if the measured bytes require the next rung: they exceed 98 % of the
// limit. A run that was predicted correctly stays below that.
constexpr bool ExceedsMemoryLimit(int64_t used, int64_t limit) {
  return used > limit - limit / 50;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_MEMORY_LADDER_H_
