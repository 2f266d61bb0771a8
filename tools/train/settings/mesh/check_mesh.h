// CheckMesh: whether batch, length and schedule fit the mesh.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_MESH_CHECK_MESH_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_MESH_CHECK_MESH_H_

#include <string_view>

#include "absl/status/status.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Whether --schedule names a file: a name that ends in .csv or has a slash.
bool IsScheduleFile(std::string_view schedule);

// A part of CheckSettings. Expects batch, micro_batch and length from 1 to
// 2^40.
absl::Status CheckMesh(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_MESH_CHECK_MESH_H_
