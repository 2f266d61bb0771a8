// Clusters in files, in the JSON form of cluster_json.h.
//
//   TESSERA_RETURN_IF_ERROR(SaveCluster(cluster, "cluster.json"));
//   TESSERA_ASSIGN_OR_RETURN(Cluster same, LoadCluster("cluster.json"));
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"

namespace tessera::topology {

// The cluster in the file. NotFound where there is no such file, another code
// of the system where it cannot be read, and InvalidArgument as
// ClusterFromJson; every message names the file.
absl::StatusOr<Cluster> LoadCluster(const std::string& path);

// Writes the file, or replaces it at one stroke: whoever reads `path`, also
// after a crash, sees the old content or the new, whole. Goes through a new
// file in the same directory, which is removed again where anything fails; then
// `path` is as it was. The directory must be there and writable.
absl::Status SaveCluster(const Cluster& cluster, const std::string& path);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_
