// How a mesh lies on a cluster: --cluster and --model of //tools/mesh.
#ifndef TESSERA_TOOLS_MESH_PLACEMENT_REPORT_H_
#define TESSERA_TOOLS_MESH_PLACEMENT_REPORT_H_

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/transformer_traffic.h"

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

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_PLACEMENT_REPORT_H_
