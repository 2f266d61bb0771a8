#include "tools/model_files/presets.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"

namespace tessera::model_files {
namespace {

struct Preset {
  std::string_view name;
  ModelConfig config;
};

constexpr int64_t kByteVocabulary = 264;

// vocabulary, hidden, intermediate, layers, heads, kv_heads, head_size,
// rope_theta, norm_epsilon, tied_embeddings, max_positions
constexpr Preset kPresets[] = {
    {"llama-1m",
     {kByteVocabulary, 128, 512, 4, 4, 2, 32, 1e4, 1e-5, false, 1024}},
    {"llama-10m",
     {kByteVocabulary, 256, 832, 12, 8, 4, 32, 1e4, 1e-5, false, 2048}},
    {"llama-50m",
     {kByteVocabulary, 512, 1536, 16, 8, 4, 64, 1e4, 1e-5, false, 2048}},
    {"llama-125m", {32000, 768, 2048, 12, 12, 4, 64, 1e4, 1e-5, false, 2048}},
    {"smollm2-135m",
     {49152, 576, 1536, 30, 9, 3, 64, 1e5, 1e-5, true, 8192, 1.0 / 24}},
    {"smollm2-360m", {49152, 960, 2560, 32, 15, 5, 64, 1e5, 1e-5, true, 8192}},
    {"llama-1b", {32000, 2048, 5632, 22, 32, 4, 64, 1e4, 1e-5, false, 2048}},
    {"smollm2-1.7b",
     {49152, 2048, 8192, 24, 32, 32, 64, 130000, 1e-5, true, 8192}},
    {"llama-3b", {32000, 3200, 8640, 26, 32, 32, 100, 1e4, 1e-6, false, 2048}},
    {"llama-7b", {32000, 4096, 11008, 32, 32, 32, 128, 1e4, 1e-6, false, 2048}},
    {"llama-8b", {128256, 4096, 14336, 32, 32, 8, 128, 5e5, 1e-5, false, 8192}},
    {"llama-13b",
     {32000, 5120, 13824, 40, 40, 40, 128, 1e4, 1e-6, false, 2048}},
    {"llama-70b", {32000, 8192, 28672, 80, 64, 8, 128, 1e4, 1e-5, false, 4096}},
};

}  // namespace

absl::StatusOr<ModelConfig> PresetConfig(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kPresets), std::end(kPresets),
                   [&](const Preset& preset) { return preset.name == name; });
  if (found != std::end(kPresets)) return found->config;
  return absl::InvalidArgumentError(
      absl::StrCat("no model is called ", Quoted(name), "; there are ",
                   absl::StrJoin(PresetNames(), ", ")));
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

}  // namespace tessera::model_files
