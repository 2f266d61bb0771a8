#include "tools/train/predict/rank_traffic.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "collectives/operation/operation.h"
#include "collectives/shared_memory/window_memory.h"
#include "topology/config/parallel_config.h"
#include "topology/groups.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::train {

using collectives::OperationTotals;
using collectives::OpKind;
using topology::CollectiveKind;

std::optional<topology::CollectiveKind> CollectiveKindOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return CollectiveKind::kAllReduce;
    case OpKind::kAllGather:
      return CollectiveKind::kAllGather;
    case OpKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case OpKind::kAllToAll:
      return CollectiveKind::kAllToAll;
    case OpKind::kSend:
      return CollectiveKind::kSendRecv;
    default:
      return std::nullopt;
  }
}

std::string_view TrafficAxisName(TrafficAxis axis) {
  // By TrafficAxis.
  constexpr std::string_view kNames[] = {
      "tp",   "cp",    "pp", "dp",  "dp_replicate",
      "data", "tp,pp", "ep", "edp", "tp,pp,ep"};
  static_assert(std::size(kNames) == kTrafficAxes.size());
  return kNames[static_cast<size_t>(axis)];
}

int64_t RanksAlong(TrafficAxis axis, const MeshSizes& mesh) {
  switch (axis) {
    case TrafficAxis::kTp:
      return mesh.tp;
    case TrafficAxis::kCp:
      return mesh.cp;
    case TrafficAxis::kPp:
      return mesh.pp;
    case TrafficAxis::kDp:
      return mesh.shard_ranks();
    case TrafficAxis::kReplicate:
      return mesh.dp_replicate;
    case TrafficAxis::kData:
      return mesh.dp * mesh.cp;
    case TrafficAxis::kModel:
      return mesh.tp * mesh.pp;
    // Without expert parallelism there are no such groups.
    case TrafficAxis::kEp:
      return mesh.ep;
    case TrafficAxis::kEdp:
      return mesh.ep > 1 ? mesh.edp() : 1;
    case TrafficAxis::kExpertModel:
      return mesh.ep > 1 ? mesh.tp * mesh.pp * mesh.ep : 1;
  }
  return 1;
}

namespace {

// The axes of TrainRank's group.
std::string_view AxesOf(TrafficAxis axis, const MeshSizes& mesh) {
  switch (axis) {
    case TrafficAxis::kDp:
      return mesh.dp_replicate > 1 ? "cp,dp_shard" : "cp,dp";
    case TrafficAxis::kData:
      return "cp,dp";
    default:
      return TrafficAxisName(axis);
  }
}

}  // namespace

int64_t RankAlong(TrafficAxis axis, const MeshSizes& mesh,
                  const RankPlace& place) {
  if (RanksAlong(axis, mesh) == 1) return 0;
  return mesh.MakeMesh()
      ->GroupsAlong(AxesOf(axis, mesh))
      ->IndexOf(topology::Rank(place.RankIn(mesh)))
      .value();
}

void RankTraffic::Add(TrafficAxis axis, OpKind kind,
                      const OperationTotals& totals) {
  if (RanksAlong(axis, mesh_) == 1 || totals.count == 0) return;
  all_[{axis, kind}].Add(totals);
}

void RankTraffic::Add(TrafficAxis axis, OpKind kind, int64_t bytes,
                      int64_t times) {
  const double busy = static_cast<double>(bytes * times) *
                      collectives::BusFactor(kind, RanksAlong(axis, mesh_));
  Add(axis, kind,
      {.count = times,
       .bytes = bytes * times,
       .busy_bytes = static_cast<int64_t>(busy),
       .largest_bytes = bytes});
}

void RankTraffic::Add(const RankTraffic& other) {
  for (const auto& [key, totals] : other.all_) {
    Add(key.first, key.second, totals);
  }
}

RankTraffic RankTraffic::Since(const RankTraffic& before) const {
  RankTraffic later(mesh_);
  for (const auto& [key, totals] : all_) {
    const auto found = before.all_.find(key);
    later.Add(
        key.first, key.second,
        found == before.all_.end() ? totals : totals.Since(found->second));
  }
  return later;
}

int64_t SentBy(OpKind kind, const OperationTotals& totals) {
  return kind == OpKind::kReceive ? 0 : totals.busy_bytes;
}

int64_t RankTraffic::SentAlong(TrafficAxis axis) const {
  int64_t bytes = 0;
  for (const auto& [key, totals] : all_) {
    if (key.first == axis) bytes += SentBy(key.second, totals);
  }
  return bytes;
}

int64_t RankTraffic::Sent() const {
  int64_t bytes = 0;
  for (const auto& [key, totals] : all_) bytes += SentBy(key.second, totals);
  return bytes;
}

RankTraffic TrafficOf(const TrainRank& rank) {
  const TrainRank::Groups& groups = rank.groups();
  const bool is_hybrid = groups.replicas != nullptr;
  RankTraffic traffic(rank.options().mesh);
  for (const auto& [axis, group] :
       {std::pair(TrafficAxis::kTp, groups.tp),
        std::pair(TrafficAxis::kCp, groups.cp),
        std::pair(TrafficAxis::kPp, groups.pp),
        std::pair(TrafficAxis::kDp, groups.shard),
        std::pair(TrafficAxis::kReplicate, groups.replicas),
        std::pair(TrafficAxis::kData, is_hybrid ? groups.data : nullptr),
        std::pair(TrafficAxis::kModel, groups.model),
        std::pair(TrafficAxis::kEp, groups.ep),
        std::pair(TrafficAxis::kEdp, groups.edp),
        std::pair(TrafficAxis::kExpertModel, groups.expert_model)}) {
    if (group == nullptr) continue;
    for (const auto& [key, totals] : group->StatisticsWithSubgroups()) {
      traffic.Add(axis, key.first, totals);
    }
  }
  return traffic;
}

namespace {

using collectives::WindowUser;

// The number of groups along an axis. In addition to the mesh's groups,
// ShardedState has a group for gathers, one for reductions and one for
// agreement; checkpoints, the norm, and sums over replicas have one group each.
int64_t GroupsAlong(TrafficAxis axis) {
  if (axis == TrafficAxis::kDp || axis == TrafficAxis::kEdp) return 5;
  const bool has_two = axis == TrafficAxis::kModel ||
                       axis == TrafficAxis::kReplicate ||
                       axis == TrafficAxis::kExpertModel;
  return has_two ? 2 : 1;
}

// The number of peers along an axis. Pipeline ranks have neighbours on both
// sides; context parallel ranks send to the next rank and receive from the
// previous one.
int64_t PeersOf(TrafficAxis axis, int64_t ranks) {
  return axis == TrafficAxis::kPp ? std::min<int64_t>(ranks - 1, 2) : 1;
}

}  // namespace

int64_t SharedWindows(const MeshSizes& mesh, const RankPlace& place,
                      const RankTraffic& traffic,
                      const SharingOptions& options) {
  // The groups of the world and of checkpoints.
  int64_t bytes = collectives::GroupMemory(mesh.world_size(), true) +
                  collectives::GroupMemory(mesh.world_size(), false);
  for (const TrafficAxis axis : kTrafficAxes) {
    const bool is_hybrid =
        axis == TrafficAxis::kReplicate || axis == TrafficAxis::kData;
    if (is_hybrid && mesh.dp_replicate == 1) continue;
    const bool is_expert = axis == TrafficAxis::kEp ||
                           axis == TrafficAxis::kEdp ||
                           axis == TrafficAxis::kExpertModel;
    if (is_expert && mesh.ep == 1) continue;
    bytes += GroupsAlong(axis) *
             collectives::GroupMemory(RanksAlong(axis, mesh), false);
  }
  // One window per group, but more along dp.
  std::map<TrafficAxis, int64_t> largest;
  for (const auto& [key, messages] : traffic.all()) {
    const auto [axis, kind] = key;
    WindowUser user;
    user.ranks = RanksAlong(axis, mesh);
    user.rank = RankAlong(axis, mesh, place);
    user.crowded = options.crowded;
    const int64_t own =
        collectives::WindowMemory(user, kind, messages.largest_bytes);
    if (kind == OpKind::kSend || kind == OpKind::kReceive) {
      bytes += PeersOf(axis, user.ranks) * own;
      continue;
    }
    if (axis != TrafficAxis::kDp && axis != TrafficAxis::kEdp) {
      largest[axis] = std::max(largest[axis], own);
      continue;
    }
    bytes += own;
    // Small messages and the largest message use different algorithms.
    if (options.crowded &&
        options.strategy == topology::CommunicationStrategy::kAdaptive) {
      bytes += collectives::ChannelMemory(user, kind, messages.largest_bytes);
    }
  }
  for (const auto& [axis, own] : largest) bytes += own;
  return bytes;
}

}  // namespace tessera::train
