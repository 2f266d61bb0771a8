// The memory ladder: settings of a run that need less and less memory and cost
// more and more time. FitMemoryLimit climbs it by predictions before a run
// starts (launch/memory_check.h); the worker climbs further while it runs if
// the ranks need more than predicted (loop/worker.h).
//
//   strategy     on top of the rungs before
//   basic        nothing
//   standard     --reduce=each, --recompute=selective, --recompute=full
//   aggressive   --zero=3, --reduce=each, --gather_ahead=0, --offload=all in
//                host memory; while running also --compression=lossless
//   extreme      --offload=all in files (--offload_dir), then activations too
//
// No rung changes the results beyond the order of sums. A rung is skipped if
// the settings have it already, if CheckSettings rejects it (--reduce below
// stage 2), and if it is predicted to save less than 1 %. The savings of
// compression depend on the values and cannot be predicted: a running job with
// all its state in host memory tries it alone.
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
  // The flags that differ from those of the first rung; empty: none.
  std::string flags = {};
  int64_t needed = 0;    // Bytes, predicted for these settings.
  int64_t as_given = 0;  // Bytes, predicted for the first rung.
};

enum class LadderUse { kBeforeStart, kWhileRunning };

// The resident bytes of the host that all ranks on this machine are predicted
// to need.
using PredictNeed =
    absl::FunctionRef<absl::StatusOr<int64_t>(const Settings& settings)>;

// The lowest rung that `is_enough`, or the highest one if none is. The first
// rung is `from`. `scratch` is a directory for files. Errors are those of
// `predict`; a rung for which it returns InvalidArgument is left out.
absl::StatusOr<MemoryRung> ClimbMemoryLadder(
    const Settings& from, LadderUse use, const std::string& scratch,
    PredictNeed predict, absl::FunctionRef<bool(const MemoryRung&)> is_enough);

// The default directory for offloaded files: below --run_dir, or the directory
// for temporary files.
std::string ScratchOf(const Settings& settings);

// True if a predicted need and a margin of 5 %, the accuracy of predictions,
// are within a limit. Bytes.
constexpr bool FitsMemoryLimit(int64_t needed, int64_t limit) {
  return needed + needed / 20 <= limit;
}

// True if measured memory calls for the next rung: it reaches into the last 2 %
// of the limit, which a correctly predicted run leaves free. Bytes.
constexpr bool ExceedsMemoryLimit(int64_t used, int64_t limit) {
  return used > limit - limit / 50;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_MEMORY_LADDER_H_
