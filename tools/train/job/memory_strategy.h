// FitMemoryLimit: what a run with --memory_limit gives up so that it fits.
//
//   strategy     on top of the one before
//   basic        nothing
//   standard     --recompute=selective, then full
//   aggressive   --zero=3, then --offload=all in host memory
//   extreme      --offload_dir, so that what is offloaded is in files
//
// The mildest step whose predicted need and 5 % are within the limit is taken.
// None of them changes what is computed beyond the order of sums. Compression
// is not among them: how much it saves depends on the values, and cannot be
// promised.
#ifndef TESSERA_TOOLS_TRAIN_JOB_MEMORY_STRATEGY_H_
#define TESSERA_TOOLS_TRAIN_JOB_MEMORY_STRATEGY_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/model_files/model_config/model_config.h"
#include "tools/train/settings/settings.h"
#include "topology/config/options/strategies.h"

namespace tessera::train {

struct MemoryChoice {
  topology::MemoryStrategy strategy = topology::MemoryStrategy::kBasic;
  Settings settings = {};
  std::string flags = {};  // What was changed: "--recompute=full --zero=3".
  int64_t needed = 0;      // Predicted, of these settings,
  int64_t as_given = 0;    // and of those that were given.

  // "memory: strategy aggressive: --recompute=full --zero=3 (231MiB of
  // --memory_limit=300MiB; 412MiB as given)"
  std::string Describe() const;
};

// The resident bytes that all ranks on this machine need together.
using PredictNeed =
    absl::FunctionRef<absl::StatusOr<int64_t>(const Settings& settings)>;

// `settings` are checked and have a memory limit. `scratch` is a directory for
// files. InvalidArgument, in one line, where even extreme does not fit: names
// the largest layer, what is needed and the least limit that is enough.
absl::StatusOr<MemoryChoice> FitMemoryLimit(
    const Settings& settings, const model_files::ModelConfig& model,
    const std::string& scratch, PredictNeed predict);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_JOB_MEMORY_STRATEGY_H_
