#include "topology/cluster/cluster_file.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "topology/cluster/cluster_json.h"

namespace tessera::topology {

absl::StatusOr<Cluster> LoadCluster(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxClusterJsonBytes)));
  TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ClusterFromJson(text),
                           Annotate(_, absl::StrCat("\"", path, "\"")));
  return cluster;
}

absl::Status SaveCluster(const Cluster& cluster, const std::string& path) {
  return WriteFile(path, ClusterToJson(cluster));
}

}  // namespace tessera::topology
