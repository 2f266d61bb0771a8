#include "tools/train/launch/memory_strategy.h"

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1fMiB",
                         static_cast<double>(bytes) / (1024.0 * 1024.0));
}

// What one rank must have at once of the layer with the most weights: these
// and their gradients.
std::string LargestLayer(const Settings& settings,
                         const model_files::ModelConfig& model) {
  const int64_t table = model.vocabulary * model.hidden;
  const int64_t layer = model.LayerParameterCount();
  const bool is_table = table > layer;
  const int64_t weights = std::max(table, layer) / settings.parallel.mesh.tp;
  const int64_t width = SizeInBytes(settings.parallel.dtype);
  return absl::StrCat(is_table ? "the embedding" : "a transformer layer",
                      " alone has ", weights * width, " bytes of weights and ",
                      weights * SizeInBytes(DType::kF32),
                      " of gradients on a rank");
}

// The least limit that FitsMemoryLimit, in whole MiB.
int64_t LeastLimit(int64_t needed) {
  constexpr int64_t kMiB = 1 << 20;
  return (needed + needed / 20 + kMiB - 1) / kMiB;
}

}  // namespace

std::string DescribeChoice(const MemoryRung& choice) {
  const bool is_changed = !choice.flags.empty();
  return absl::StrCat(
      "memory: strategy ", topology::EnumName(choice.strategy), ": ",
      is_changed ? choice.flags : "as given", " (predicted ",
      MiB(choice.needed),
      " of --memory_limit=", choice.settings.parallel.memory_limit.ToString(),
      is_changed ? absl::StrCat("; ", MiB(choice.as_given), " as given)")
                 : ")");
}

absl::StatusOr<MemoryRung> FitMemoryLimit(const Settings& settings,
                                          const model_files::ModelConfig& model,
                                          const std::string& scratch,
                                          PredictNeed predict) {
  const ByteSize limit = settings.parallel.memory_limit;
  const auto is_enough = [&](const MemoryRung& rung) {
    return FitsMemoryLimit(rung.needed, limit.bytes());
  };
  TESSERA_ASSIGN_OR_RETURN(MemoryRung rung,
                           ClimbMemoryLadder(settings, LadderUse::kBeforeStart,
                                             scratch, predict, is_enough));
  if (is_enough(rung)) return rung;
  return absl::InvalidArgumentError(absl::StrCat(
      "--memory_limit=", limit.ToString(),
      ": is below what the run needs even with strategy ",
      topology::EnumName(rung.strategy), rung.flags.empty() ? "" : " (",
      rung.flags, rung.flags.empty() ? "" : ")", ": ", rung.needed,
      " bytes on this machine; ", LargestLayer(settings, model),
      "; give such as --memory_limit=", LeastLimit(rung.needed),
      "MiB, or spread the model over more machines"));
}

}  // namespace tessera::train
