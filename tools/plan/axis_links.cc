#include "tools/plan/axis_links.h"

#include <optional>

#include "topology/placement/link_profile.h"
#include "topology/placement/traffic.h"

namespace tessera::plan {
namespace {

using collectives::OpKind;
using topology::CollectiveKind;
using train::TrafficAxis;

std::optional<CollectiveKind> KindOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return CollectiveKind::kAllReduce;
    case OpKind::kAllGather:
      return CollectiveKind::kAllGather;
    case OpKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    default:
      return std::nullopt;
  }
}

int64_t StrideOf(TrafficAxis axis, const train::MeshSizes& mesh) {
  switch (axis) {
    case TrafficAxis::kCp:
    case TrafficAxis::kDp:  // With the context ranks.
    case TrafficAxis::kData:
      return mesh.tp;
    case TrafficAxis::kReplicate:
      return mesh.tp * mesh.shard_ranks();
    case TrafficAxis::kPp:
      return mesh.tp * mesh.cp * mesh.dp;
    default:
      return 1;
  }
}

}  // namespace

const topology::LinkProfile& AxisLinks::ProfileOf(const train::MeshSizes& mesh,
                                                  TrafficAxis axis) {
  const int64_t size = train::RanksAlong(axis, mesh);
  const int64_t stride = StrideOf(axis, mesh);
  const auto found = profiles_.find({size, stride});
  if (found != profiles_.end()) return found->second;
  return profiles_[{size, stride}] = topology::MeasureLinks(
             cluster_, ranks_, size, stride, {.exchange = false});
}

double AxisLinks::Seconds(const train::MeshSizes& mesh, TrafficAxis axis,
                          OpKind kind, double bytes, double times) {
  // The norm's few bytes: its ranks lie in no single stride.
  if (axis == TrafficAxis::kModel || train::RanksAlong(axis, mesh) == 1) {
    return 0;
  }
  const topology::LinkProfile& profile = ProfileOf(mesh, axis);
  if (kind == OpKind::kSend) {
    const auto& links = axis == TrafficAxis::kPp ? profile.chain : profile.ring;
    return times * links.Seconds(bytes);
  }
  const auto collective = KindOf(kind);
  if (!collective) return 0;
  return topology::TransferSeconds({*collective, bytes, times}, profile);
}

double AxisLinks::SecondsOf(const train::MeshSizes& mesh, TrafficAxis axis,
                            OpKind kind, const train::RankTraffic& traffic) {
  const auto found = traffic.all().find({axis, kind});
  if (found == traffic.all().end() || found->second.count == 0) return 0;
  const auto times = static_cast<double>(found->second.count);
  return Seconds(mesh, axis, kind,
                 static_cast<double>(found->second.bytes) / times, times);
}

double AxisLinks::SecondsAlong(const train::MeshSizes& mesh, TrafficAxis axis,
                               const train::RankTraffic& traffic) {
  double seconds = 0;
  for (const auto& [key, of] : traffic.all()) {
    if (key.first == axis) {
      seconds += SecondsOf(mesh, axis, key.second, traffic);
    }
  }
  return seconds;
}

}  // namespace tessera::plan
