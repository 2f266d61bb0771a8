// The memory ladder: what a run gives up, rung by rung, so that it needs less
// memory. Before it starts FitMemoryLimit climbs by predictions alone
// (job/memory_strategy.h); while it runs the worker climbs on when ranks have
// more than was predicted (worker/worker.h).
//
//   strategy     on top of the rungs before
//   basic        nothing
//   standard     --reduce=each, --recompute=selective, --recompute=full
//   aggressive   --zero=3, --reduce=each, --gather_ahead=0, --offload=all in
//                host memory; while running also --compression=lossless
//   extreme      --offload=all in files (--offload_dir), then activations too
//
// No rung changes what is computed beyond the order of sums. A rung is left out
// where the settings have it already, where CheckSettings refuses it (--reduce
// below stage 2), and where it is predicted to save less than 1 %. How much
// compression saves depends on the values, so nothing can be promised before a
// run: it is tried alone, by a run that has all its state in host memory.
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

// The resident bytes that all ranks on this machine are predicted to need.
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
