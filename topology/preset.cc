#include "topology/preset.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::topology {
namespace {

constexpr std::array<Preset, 5> kPresets = {{
    {"megatron", "tp-cp-ep-dp-pp",
     "Megatron-LM's default: tensor fastest, pipeline slowest"},
    {"megatron-tp-pp-dp", "tp-cp-ep-pp-dp",
     "Megatron-LM with --use-tp-pp-dp-mapping: data slowest"},
    {"megatron-moe", "tp-ep-cp-dp-pp",
     "Megatron-LM's order with experts next to tensor"},
    {"pipeline-tensor-data", "pp-tp-cp-ep-dp",
     "pipeline fastest, then tensor, then data: dp_rank = r / (pp * tp)"},
    {"data-pipeline-context-tensor", "tp-cp-ep-pp-dp",
     "data, pipeline, context, tensor from slowest to fastest: torchtitan and "
     "picotron"},
}};

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

absl::StatusOr<Preset> FindPreset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset;
  }
  return absl::NotFoundError(absl::StrCat(
      "no preset \"", name.substr(0, 60), "\"; there are ",
      absl::StrJoin(kPresets, ", ", [](std::string* out, const Preset& preset) {
        absl::StrAppend(out, preset.name);
      })));
}

}  // namespace tessera::topology
