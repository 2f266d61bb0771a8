// ReferenceCost: an independent cost model for tests. It follows the
// definitions, with a Mesh's lists of groups and every pair of devices. Slow
// and simple.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_TESTING_REFERENCE_COST_H_
#define TESSERA_TOPOLOGY_PLACEMENT_TESTING_REFERENCE_COST_H_

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "topology/cluster/cluster.h"
#include "topology/mesh.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

class ReferenceCost {
 public:
  // The groups along the axis of `size` ranks with `stride` between them.
  ReferenceCost(const Cluster& cluster, int64_t world, int64_t size,
                int64_t stride)
      : cluster_(cluster) {
    const std::vector<Axis> axes = {{"inner", AxisSize(stride)},
                                    {"own", AxisSize(size)},
                                    {"outer", AxisSize(world / size / stride)}};
    groups_ = Mesh::Create(axes)->GroupsAlong("own")->All();
  }

  double Seconds(const Transfer& transfer) const {
    const auto n = static_cast<double>(groups_[0].size());
    if (n == 1) return 0;
    double once = 0;
    switch (transfer.kind) {
      case CollectiveKind::kAllReduce:
        once = 2 * (n - 1) * Slowest(transfer.bytes / n, true);
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kReduceScatter:
        once = (n - 1) * Slowest(transfer.bytes / n, true);
        break;
      case CollectiveKind::kSendRecv:
        once = Slowest(transfer.bytes, false);
        break;
      case CollectiveKind::kAllToAll:
        once = Exchange(transfer.bytes / n);
    }
    return once * transfer.times;
  }

 private:
  struct Edge {
    Rank from;
    Rank to;
    const std::vector<Rank>* group;
  };

  int64_t HostOf(Rank rank) const {
    return cluster_.HostOf(DeviceIndex(rank.value()))->value();
  }
  Link LinkOf(Rank a, Rank b) const {
    return *cluster_.LinkBetween(DeviceIndex(a.value()),
                                 DeviceIndex(b.value()));
  }
  double Members(const Edge& edge, Rank rank) const {
    return static_cast<double>(std::count_if(
        edge.group->begin(), edge.group->end(),
        [&](Rank other) { return HostOf(other) == HostOf(rank); }));
  }

  std::vector<Edge> Edges(bool ring) const {
    std::vector<Edge> edges;
    for (const std::vector<Rank>& group : groups_) {
      for (size_t i = 0; i + 1 < group.size(); ++i) {
        edges.push_back({group[i], group[i + 1], &group});
      }
      if (ring) edges.push_back({group.back(), group.front(), &group});
    }
    return edges;
  }

  double Slowest(double bytes, bool ring) const {
    const std::vector<Edge> edges = Edges(ring);
    std::map<int64_t, double> out;
    std::map<int64_t, double> in;
    for (const Edge& edge : edges) {
      if (LinkOf(edge.from, edge.to).level != LinkLevel::kNetwork) continue;
      ++out[HostOf(edge.from)];
      ++in[HostOf(edge.to)];
    }
    double slowest = 0;
    for (const Edge& edge : edges) {
      const Link link = LinkOf(edge.from, edge.to);
      double bandwidth = link.speed.bandwidth;
      if (link.level == LinkLevel::kNetwork) {
        const double cards =
            ring ? std::min(Members(edge, edge.from), Members(edge, edge.to))
                 : 1;
        const int64_t source = HostOf(edge.from);
        const int64_t target = HostOf(edge.to);
        bandwidth = std::min(
            {bandwidth * cards,
             *cluster_.NetworkBandwidth(HostIndex(source)) / out[source],
             *cluster_.NetworkBandwidth(HostIndex(target)) / in[target]});
      }
      slowest = std::max(slowest, link.speed.latency + bytes / bandwidth);
    }
    return slowest;
  }

  double Exchange(double bytes) const {
    double latency = 0;
    double busiest = 0;
    std::map<int64_t, double> out;
    for (const std::vector<Rank>& group : groups_) {
      for (Rank a : group) {
        double busy = 0;
        for (Rank b : group) {
          if (a == b) continue;
          const Link link = LinkOf(a, b);
          latency = std::max(latency, link.speed.latency);
          busy += bytes / link.speed.bandwidth;
          if (link.level == LinkLevel::kNetwork) out[HostOf(a)] += bytes;
        }
        busiest = std::max(busiest, busy);
      }
    }
    for (const auto& [host, sent] : out) {
      busiest =
          std::max(busiest, sent / *cluster_.NetworkBandwidth(HostIndex(host)));
    }
    return static_cast<double>(groups_[0].size() - 1) * latency + busiest;
  }

  const Cluster& cluster_;
  std::vector<std::vector<Rank>> groups_;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_TESTING_REFERENCE_COST_H_
