// ParseMesh: what --mesh says.
//
//   TESSERA_ASSIGN_OR_RETURN(MeshSizes mesh, ParseMesh("dp2,tp4"));
//   mesh.world_size();    // 8
//   FormatMesh(mesh);     // "dp2,pp1,cp1,tp4"
//   ParseMesh("dp_replicate2,dp_shard4")->dp;  // 8
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_MESH_PARSE_MESH_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_MESH_PARSE_MESH_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/train/run/run_options.h"

namespace tessera::train {

inline constexpr int64_t kMostTrainRanks = int64_t{1} << 20;

// Axes dp, pp, cp and tp in any order, each at most once and with a size of 1
// or more; one that is not there has 1. Instead of dp, or beside it, its two
// parts may be given, dp_replicate and dp_shard (hybrid sharding). Without
// dp_replicate, dp ranks share one copy of the model state. InvalidArgument,
// without the flag's name, for all else, for parts that do not multiply to dp
// and for more than kMostTrainRanks ranks.
absl::StatusOr<MeshSizes> ParseMesh(std::string_view mesh);

// ParseMesh reads it back.
std::string FormatMesh(const MeshSizes& sizes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_MESH_PARSE_MESH_H_
