// MeshReport: what //tools/mesh says about a mesh, before it is printed.
#ifndef TESSERA_TOOLS_MESH_REPORT_H_
#define TESSERA_TOOLS_MESH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/mesh/placement_report.h"
#include "topology/device_mesh.h"
#include "topology/groups.h"
#include "topology/mesh.h"

namespace tessera::tools {

// The flags, as text where a library parses them.
struct MeshOptions {
  std::string mesh = "dp2,pp2,tp2";
  std::string order;   // Empty: the preset's, with the mesh's other axes after.
  std::string preset;  // Empty: the first of Presets().
  std::string axes;    // Empty: every axis by itself.
  std::string split;   // "dp:dp_shard4,dp_replicate2;tp:..."
  int64_t ep = 1;
  int64_t etp = 1;
  int64_t first_rank = 0;
  std::optional<int64_t> world_size;  // What the mesh must multiply to.
  std::optional<int64_t> rank;        // The one rank to show.
  std::string grid;     // "pp/dp,cp/tp": planes, rows, columns. Empty: none.
  std::string cluster;  // Empty: nothing is said about machines.
  std::string model;    // What ReadModel takes.
};

// The groups along one set of axes.
struct Listing {
  std::string axes;  // "tp" or "tp,pp".
  topology::Groups groups;
};

struct MeshReport {
  topology::Mesh mesh;
  std::string order;              // As given or as the preset has it.
  std::vector<std::string> axes;  // Of every division, each once.
  std::vector<Listing> listings;  // The first is the one that JSON prints.
  std::optional<topology::Rank> rank;
  std::optional<topology::DeviceMesh> grid;
  std::optional<PlacementReport> placement;
};

// At most this many ranks are listed; a larger mesh needs --rank.
inline constexpr int64_t kMaxListedRanks = int64_t{1} << 24;

// InvalidArgument that names the flag, its value and what is allowed.
absl::StatusOr<MeshReport> MakeReport(const MeshOptions& options);

// Calls `visit` with the ranks to print (one, or all in order) and with the
// groups of a listing to print (the rank's, or all in order).
void ForEachRank(const MeshReport& report,
                 absl::FunctionRef<void(topology::Rank)> visit);
void ForEachGroup(const MeshReport& report, const Listing& listing,
                  absl::FunctionRef<void(const std::string& name,
                                         const std::vector<topology::Rank>&)>
                      visit);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_REPORT_H_
