#include "tools/train/job/memory_strategy.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "tools/train/settings/check_settings.h"

namespace tessera::train {
namespace {

using topology::MemoryStrategy;

struct Step {
  MemoryStrategy strategy;
  void (*change)(Settings& settings, const std::string& scratch);
};

constexpr Step kSteps[] = {
    {MemoryStrategy::kStandard,
     [](Settings& s, const std::string&) {
       if (s.recompute == "none") s.recompute = "selective";
     }},
    {MemoryStrategy::kStandard,
     [](Settings& s, const std::string&) { s.recompute = "full"; }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { s.zero = 3; }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { s.offload = "all"; }},
    {MemoryStrategy::kExtreme,
     [](Settings& s, const std::string& scratch) {
       if (s.offload_dir.empty()) s.offload_dir = scratch;
     }},
};

std::string ChangedFlags(const Settings& from, const Settings& to) {
  std::vector<std::string> flags;
  const auto add = [&](std::string_view flag, const auto& old,
                       const auto& now) {
    if (old != now) flags.push_back(absl::StrCat("--", flag, "=", now));
  };
  add("recompute", from.recompute, to.recompute);
  add("zero", from.zero, to.zero);
  add("offload", from.offload, to.offload);
  add("offload_dir", from.offload_dir, to.offload_dir);
  return absl::StrJoin(flags, " ");
}

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

// Predictions are within 5 % of what runs take.
int64_t WithMargin(int64_t needed) { return needed + needed / 20; }

// A whole number of MiB.
int64_t RoundedUp(int64_t bytes) {
  constexpr int64_t kMiB = 1 << 20;
  return (bytes + kMiB - 1) / kMiB;
}

}  // namespace

std::string MemoryChoice::Describe() const {
  const bool is_changed = !flags.empty();
  return absl::StrCat(
      "memory: strategy ", topology::EnumName(strategy), ": ",
      is_changed ? flags : "as given", " (predicted ", MiB(needed),
      " of --memory_limit=", settings.parallel.memory_limit.ToString(),
      is_changed ? absl::StrCat("; ", MiB(as_given), " as given)") : ")");
}

absl::StatusOr<MemoryChoice> FitMemoryLimit(
    const Settings& settings, const model_files::ModelConfig& model,
    const std::string& scratch, PredictNeed predict) {
  const ByteSize limit = settings.parallel.memory_limit;
  MemoryChoice choice = {.settings = settings};
  TESSERA_ASSIGN_OR_RETURN(choice.needed, predict(settings));
  choice.as_given = choice.needed;
  MemoryChoice least = choice;
  for (const Step& step : kSteps) {
    if (WithMargin(choice.needed) <= limit.bytes()) return choice;
    Settings next = choice.settings;
    step.change(next, scratch);
    if (next == choice.settings || !CheckSettings(next).ok()) continue;
    choice.strategy = step.strategy;
    choice.settings = std::move(next);
    choice.flags = ChangedFlags(settings, choice.settings);
    TESSERA_ASSIGN_OR_RETURN(choice.needed, predict(choice.settings));
    if (choice.needed < least.needed) least = choice;
  }
  if (WithMargin(choice.needed) <= limit.bytes()) return choice;
  return absl::InvalidArgumentError(absl::StrCat(
      "--memory_limit=", limit.ToString(),
      ": is below what the run needs even with strategy ",
      topology::EnumName(least.strategy), least.flags.empty() ? "" : " (",
      least.flags, least.flags.empty() ? "" : ")", ": ", least.needed,
      " bytes on this machine; ", LargestLayer(settings, model),
      "; give such as --memory_limit=", RoundedUp(WithMargin(least.needed)),
      "MiB, or spread the model over more machines"));
}

}  // namespace tessera::train
