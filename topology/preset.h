// Presets: the axis orders that the field's systems use, by name.
//
//   FindPreset("megatron")->order            // "tp-cp-ep-dp-pp"
//   Mesh::Create(axes, FindPreset("megatron")->order)
//
// A preset is nothing but an order string; every mesh goes through OrderAxes.
#ifndef TESSERA_TOPOLOGY_PRESET_H_
#define TESSERA_TOPOLOGY_PRESET_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::topology {

struct Preset {
  std::string_view name;
  std::string_view order;        // Fastest first, as OrderAxes takes it.
  std::string_view description;  // Who lays ranks out so.
};

// All presets, the default first.
std::span<const Preset> Presets();

// The preset of that name. NotFound, listing the names there are.
absl::StatusOr<Preset> FindPreset(std::string_view name);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PRESET_H_
