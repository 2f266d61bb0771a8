// ChooseOrder: the order of the mesh's axes that --order=auto selects.
//
//   TESSERA_ASSIGN_OR_RETURN(settings.order,
//                            ChooseOrder(settings, model, locations));
//
// The cost of an order is that of topology/placement, for the messages that
// PredictRank counts and the default links of a host of CPUs: it tells the
// network from sockets and hosts, not one network from another.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_ORDER_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_ORDER_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/groups/host_hierarchy.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/settings/settings.h"
#include "topology/cluster/cluster.h"
#include "topology/config/parallel_config.h"
#include "topology/discovery/launcher_environment.h"
#include "topology/placement/traffic.h"

namespace tessera::train {

// --order, or the cheapest order if it is "auto"; of equally cheap orders the
// first in the order tp, cp, dp, pp. locations[r] is that of rank r; without
// locations all ranks are on one host. The same result for the same arguments
// on every machine.
//
// InvalidArgument if ranks of a host are not consecutive; otherwise errors of
// RunOptionsFrom and PredictRanks.
absl::StatusOr<std::string> ChooseOrder(
    const Settings& settings, const model_files::ModelConfig& model,
    std::span<const collectives::RankLocation> locations);

// The locations that a launcher's variables describe: hosts of
// local_world_size ranks each. Empty without these variables.
std::vector<collectives::RankLocation> LocationsOf(
    const topology::LauncherEnvironment& environment);

// A host of CPU slots for each host, with a slot for each rank. Errors as
// ChooseOrder.
absl::StatusOr<topology::Cluster> ClusterOf(
    std::span<const collectives::RankLocation> locations);

// The messages of a rank by axis of the mesh, in the order tp, cp, dp, pp.
// Those of the state, which data and context ranks share, count along dp, or
// along cp if dp is 1.
std::vector<topology::AxisTraffic> TrafficOfAxes(
    const RankTraffic& traffic, const topology::MeshSizes& mesh);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_ORDER_H_
