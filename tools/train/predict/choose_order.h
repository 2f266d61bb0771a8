// Selects the order of the mesh's axes for --order=auto.
//
//   TESSERA_ASSIGN_OR_RETURN(settings.order,
//                            ChooseOrder(settings, model, locations));
//
// topology/placement computes the cost of an order, from the messages that
// PredictRank counts and the default links of a host of CPUs. The cost
// therefore distinguishes the network from links within hosts and sockets, but
// does not depend on the kind of network.
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

// Returns --order, or the cheapest order if that is "auto". Among equally cheap
// orders it is the lexicographically first, where axes are sorted as tp, cp,
// dp, pp. locations[r] is the location of rank r; without locations all ranks
// are on one host. The result depends only on the arguments, not on the
// machine.
//
// InvalidArgument if the ranks of a host are not consecutive. Also returns
// errors of RunOptionsFrom and PredictRanks.
absl::StatusOr<std::string> ChooseOrder(
    const Settings& settings, const model_files::ModelConfig& model,
    std::span<const collectives::RankLocation> locations);

// The locations that a launcher's variables describe: hosts of
// local_world_size ranks each. Empty without these variables.
std::vector<collectives::RankLocation> LocationsOf(
    const topology::LauncherEnvironment& environment);

// The cluster of these locations: a host of CPU slots per host, with a slot per
// rank. InvalidArgument if the ranks of a host are not consecutive.
absl::StatusOr<topology::Cluster> ClusterOf(
    std::span<const collectives::RankLocation> locations);

// The messages of a rank by mesh axis, in the order tp, cp, dp, pp. Messages of
// the state, which data and context ranks share, are counted along dp, or along
// cp if dp is 1.
std::vector<topology::AxisTraffic> TrafficOfAxes(
    const RankTraffic& traffic, const topology::MeshSizes& mesh);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_ORDER_H_
