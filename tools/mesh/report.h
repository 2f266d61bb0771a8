// How a mesh lies on a cluster: --cluster and --model of //tools/mesh.
#ifndef TESSERA_TOOLS_MESH_REPORT_H_
#define TESSERA_TOOLS_MESH_REPORT_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"
#include "topology/device_mesh.h"
#include "topology/groups.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/traffic.h"

namespace tessera::tools {

struct PlacementReport {
  topology::Cluster cluster;
  topology::Placement given;       // In the mesh's own order.
  topology::Placement best;        // In the order of least cost.
  std::vector<std::string> notes;  // What discovery could not find.
};

// The cluster that --cluster means: "here" for this machine, a name ending in
// .json for a file, else a line such as "hosts=16,gpus=8". Appends to `notes`
// what this machine does not tell about itself.
absl::StatusOr<topology::Cluster> ReadCluster(const std::string& text,
                                              std::vector<std::string>* notes);

// The shape that --model means: "key=value" items separated by commas over the
// shape of Llama 2 7B, with the keys layers, hidden, kv_hidden, sequence,
// micro_batch, micro_batches, parameters, expert_parameters, experts_per_token
// and zero.
absl::StatusOr<topology::TransformerShape> ReadModel(std::string_view text);

// Errors name the flag, its value and what is allowed.
absl::StatusOr<PlacementReport> MakePlacementReport(const topology::Mesh& mesh,
                                                    const std::string& cluster,
                                                    const std::string& model);

// A section of text after the mesh's own, or the value of the key "placement".
void PrintPlacementText(const PlacementReport& report, std::ostream& out);
void PrintPlacementJson(const PlacementReport& report, std::ostream& out);

// MeshReport: what //tools/mesh says about a mesh, before it is printed.

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
