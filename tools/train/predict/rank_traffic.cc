#include "tools/train/predict/rank_traffic.h"

#include <algorithm>

#include "collectives/record/flight_recorder.h"

namespace tessera::train {

using collectives::OpKind;

std::string_view TrafficAxisName(TrafficAxis axis) {
  switch (axis) {
    case TrafficAxis::kTp:
      return "tp";
    case TrafficAxis::kCp:
      return "cp";
    case TrafficAxis::kPp:
      return "pp";
    case TrafficAxis::kDp:
      return "dp";
    case TrafficAxis::kReplicate:
      return "dp_replicate";
    case TrafficAxis::kData:
      return "data";
    case TrafficAxis::kModel:
      return "tp,pp";
  }
  return "none";
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
  }
  return 1;
}

void RankTraffic::Add(TrafficAxis axis, OpKind kind,
                      const collectives::OperationCount& count) {
  const int64_t ranks = RanksAlong(axis, mesh_);
  if (ranks == 1 || count.count == 0) return;
  OperationTraffic& traffic = all_[{axis, kind}];
  traffic.count += count.count;
  traffic.bytes += count.bytes;
  traffic.largest = std::max(traffic.largest, count.largest);
  if (kind == OpKind::kReceive) return;
  traffic.sent +=
      static_cast<double>(count.bytes) * collectives::BusFactor(kind, ranks);
}

int64_t RankTraffic::BytesOf(TrafficAxis axis) const {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : all_) {
    if (key.first == axis) bytes += traffic.bytes;
  }
  return bytes;
}

double RankTraffic::SentAlong(TrafficAxis axis) const {
  double bytes = 0;
  for (const auto& [key, traffic] : all_) {
    if (key.first == axis) bytes += traffic.sent;
  }
  return bytes;
}

}  // namespace tessera::train
