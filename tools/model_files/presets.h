// Models by name.
#ifndef TESSERA_TOOLS_MODEL_FILES_PRESETS_H_
#define TESSERA_TOOLS_MODEL_FILES_PRESETS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"

namespace tessera::model_files {

// A model by name, from a million parameters to published shapes. The presets
// up to llama-50m are for byte tokens: 256 bytes, the end of text, and spare
// tokens up to a multiple of 8. InvalidArgument, with the known names, for an
// unknown name.
absl::StatusOr<ModelConfig> PresetConfig(std::string_view name);

// From the smallest model to the largest.
std::vector<std::string_view> PresetNames();

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_PRESETS_H_
