// The output of //tools/mesh: MeshReport, the properties of a mesh, and
// PlacementReport, its placement on a cluster.
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
#include "tensor_parallel/sharding/redistribution.h"
#include "tools/mesh/tensor_report.h"
#include "topology/cluster/cluster.h"
#include "topology/device_mesh.h"
#include "topology/groups.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/traffic.h"

namespace tessera::tools {

struct PlacementReport {
  topology::Cluster cluster;
  topology::Placement given;       // In the given order.
  topology::Placement best;        // In the cheapest order.
  std::vector<std::string> notes;  // Assumptions about this machine.
};

// Reads the value of --cluster: "here" for this machine, whose cores `ranks`
// ranks may share; a file name that ends in .json; or a line such as
// "hosts=16,gpus=8". Appends to `notes` what was assumed.
absl::StatusOr<topology::Cluster> ReadCluster(const std::string& text,
                                              std::vector<std::string>* notes,
                                              int64_t ranks = 1);

// Reads the value of --model: comma-separated "key=value" items that override
// the shape of Llama 2 7B. The keys are layers, hidden, kv_hidden, sequence,
// micro_batch, micro_batches, parameters, expert_parameters, experts_per_token
// and zero.
absl::StatusOr<topology::TransformerShape> ReadModel(std::string_view text);

// Errors name the flag, its value and the allowed values.
absl::StatusOr<PlacementReport> MakePlacementReport(const topology::Mesh& mesh,
                                                    const std::string& cluster,
                                                    const std::string& model);

// Print the text section for the placement, and the value of the JSON key
// "placement".
void PrintPlacementText(const PlacementReport& report, std::ostream& out);
void PrintPlacementJson(const PlacementReport& report, std::ostream& out);

// The values of the flags; those that a library parses are text.
struct MeshOptions {
  std::string mesh = "dp2,pp2,tp2";
  std::string order;   // Empty: the preset's, then all other axes.
  std::string preset;  // Empty: the first of Presets().
  std::string axes;    // Empty: every axis by itself.
  std::string split;   // "dp:dp_shard4,dp_replicate2;tp:..."
  int64_t ep = 1;
  int64_t etp = 1;
  int64_t first_rank = 0;
  std::optional<int64_t> world_size;  // Must equal the size of the mesh.
  std::optional<int64_t> rank;        // Shows only this rank.
  std::string grid;     // "pp/dp,cp/tp": planes, rows, columns. Empty: none.
  std::string cluster;  // Empty: no placement.
  std::string model;    // For ReadModel.
  TensorOptions tensor;
};

// The groups along one set of axes.
struct Listing {
  std::string axes;  // "tp" or "tp,pp".
  topology::Groups groups;
};

struct MeshReport {
  topology::Mesh mesh;
  std::string order;              // Given, or from the preset.
  std::vector<std::string> axes;  // Of all listings, without duplicates.
  std::vector<Listing> listings;  // JSON prints the first.
  std::optional<topology::Rank> rank;
  std::optional<topology::DeviceMesh> grid;
  std::optional<PlacementReport> placement;
  std::optional<tensor_parallel::RedistributionPlan> tensor;
};

// The largest mesh whose ranks are listed; a larger mesh requires --rank.
inline constexpr int64_t kMaxListedRanks = int64_t{1} << 24;

// InvalidArgument with the flag, its value and the allowed values.
absl::StatusOr<MeshReport> MakeReport(const MeshOptions& options);

// Call `visit` for each rank to print (the selected rank, or all in order), and
// for each group of a listing to print (the group of the selected rank, or all
// in order).
void ForEachRank(const MeshReport& report,
                 absl::FunctionRef<void(topology::Rank)> visit);
void ForEachGroup(const MeshReport& report, const Listing& listing,
                  absl::FunctionRef<void(const std::string& name,
                                         const std::vector<topology::Rank>&)>
                      visit);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_REPORT_H_
