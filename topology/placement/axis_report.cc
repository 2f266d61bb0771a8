#include "topology/placement/axis_report.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "topology/placement/axis_ranks.h"
#include "topology/placement/collective_cost.h"

namespace tessera::topology {
namespace {

// The axes whose traffic stands in the way of every layer, and so should not
// leave a host.
bool BelongsInHost(std::string_view axis) { return axis == "tp"; }

// Bytes on each link to the next rank that all transfers of one shape make.
struct LinkBytes {
  double ring = 0;
  double chain = 0;
  double peer = 0;
};

LinkBytes AddUp(const AxisTraffic& traffic) {
  LinkBytes sum;
  for (const Transfer& transfer : traffic.transfers) {
    const double bytes =
        BytesPerLink(transfer, traffic.axis.size.value()) * transfer.times;
    if (transfer.kind == CollectiveKind::kAllToAll) {
      sum.peer += bytes;
    } else if (transfer.kind == CollectiveKind::kSendRecv) {
      sum.chain += bytes;
    } else {
      sum.ring += bytes;
    }
  }
  return sum;
}

class Reporter {
 public:
  Reporter(const AxisTraffic& traffic, int64_t stride, int64_t world_size,
           const Cluster& cluster)
      : cluster_(cluster),
        world_(world_size),
        ranks_(traffic.axis.size.value(), stride),
        bytes_(AddUp(traffic)) {
    report_.placement.axis = traffic.axis;
    report_.placement.stride = stride;
    report_.host_bytes.resize(static_cast<size_t>(cluster.num_hosts()));
  }

  AxisReport Make() {
    std::vector<LinkLevel> worst_of_block(static_cast<size_t>(ranks_.stride()),
                                          LinkLevel::kDevice);
    for (int64_t rank = 0; rank < world_; ++rank) {
      LinkLevel& worst =
          worst_of_block[static_cast<size_t>(rank % ranks_.stride())];
      worst = std::max(worst, AddRank(rank));
      if (!ranks_.IsLast(rank)) continue;
      EndGroup(ranks_.Base(rank), worst);
      worst = LinkLevel::kDevice;
    }
    AxisPlacement& placement = report_.placement;
    for (double bytes : report_.host_bytes) {
      placement.network_bytes += bytes;
      placement.busiest_host_bytes =
          std::max(placement.busiest_host_bytes, bytes);
    }
    return std::move(report_);
  }

 private:
  DevicePlace Locate(int64_t rank) const {
    return *cluster_.Locate(DeviceIndex(rank));
  }

  // The level to the next rank. Counts what the rank sends out of its host.
  LinkLevel AddRank(int64_t rank) {
    const DevicePlace here = Locate(rank);
    const LinkLevel level =
        cluster_.LinkBetween(here, Locate(ranks_.Next(rank))).level;
    double& bytes = report_.host_bytes[static_cast<size_t>(here.host.value())];
    if (level == LinkLevel::kNetwork) {
      bytes += bytes_.ring;
      if (!ranks_.IsLast(rank)) bytes += bytes_.chain;
    }
    if (bytes_.peer > 0) {
      bytes += bytes_.peer * static_cast<double>(RemotePeers(rank, here));
    }
    return level;
  }

  // Peers of a rank that only the network reaches.
  int64_t RemotePeers(int64_t rank, const DevicePlace& here) const {
    const HostGroup& group = cluster_.groups()[static_cast<size_t>(here.group)];
    if (group.nvlink_hosts == 1) {
      const int64_t first = rank - here.local;
      const int64_t end = first + static_cast<int64_t>(group.devices.size());
      return ranks_.size() - ranks_.MembersIn(rank, first, end);
    }
    int64_t remote = 0;
    for (int64_t i = 0; i < ranks_.size(); ++i) {
      const int64_t peer = ranks_.Base(rank) + i * ranks_.stride();
      const Link link = cluster_.LinkBetween(here, Locate(peer));
      remote += link.level == LinkLevel::kNetwork ? 1 : 0;
    }
    return remote;
  }

  void EndGroup(int64_t base, LinkLevel worst) {
    AxisPlacement& placement = report_.placement;
    ++placement.groups_at_level[static_cast<size_t>(worst)];
    placement.worst_level = std::max(placement.worst_level, worst);
    int64_t& example = worst == LinkLevel::kNetwork ? report_.crossing_group
                                                    : report_.inner_group;
    if (example < 0) example = base;
  }

  const Cluster& cluster_;
  const int64_t world_;
  const AxisRanks ranks_;
  const LinkBytes bytes_;
  AxisReport report_;
};

std::string HostOfRank(const Cluster& cluster, int64_t rank) {
  return *cluster.HostName(*cluster.HostOf(DeviceIndex(rank)));
}

// "the group of ranks 7, 8, 9, ... on hosts host0, host1".
std::string DescribeGroup(const AxisPlacement& placement, int64_t base,
                          const Cluster& cluster) {
  constexpr int64_t kShown = 4;
  const int64_t size = placement.axis.size.value();
  std::vector<std::string> ranks;
  std::vector<std::string> hosts;
  for (int64_t i = 0; i < size && static_cast<int64_t>(hosts.size()) < kShown;
       ++i) {
    const int64_t rank = base + i * placement.stride;
    if (i < kShown) ranks.push_back(absl::StrCat(rank));
    std::string host = HostOfRank(cluster, rank);
    if (hosts.empty() || hosts.back() != host) hosts.push_back(std::move(host));
  }
  return absl::StrCat(
      "the group of ranks ", absl::StrJoin(ranks, ", "),
      size > kShown ? ", ..." : "", " on hosts ", absl::StrJoin(hosts, ", "),
      static_cast<int64_t>(hosts.size()) == kShown ? ", ..." : "");
}

int64_t SmallestHost(const Cluster& cluster) {
  size_t least = cluster.groups().front().devices.size();
  for (const HostGroup& group : cluster.groups()) {
    least = std::min(least, group.devices.size());
  }
  return static_cast<int64_t>(least);
}

// What to change so that groups of the axis stay within hosts.
std::string Advice(const AxisPlacement& placement, const Cluster& cluster) {
  const int64_t devices = SmallestHost(cluster);
  const int64_t size = placement.axis.size.value();
  const std::string& name = placement.axis.name;
  if (size > devices) {
    return absl::StrCat("use ", name, " of at most ", devices,
                        ", the devices of the smallest host");
  }
  if (devices % size != 0) {
    return absl::StrCat("use ", name, " of a size that divides the ", devices,
                        " devices of the smallest host");
  }
  const int64_t block = size * placement.stride;
  if (block > devices) {
    return absl::StrCat("lessen the axes that vary faster, so that they and ",
                        name, " multiply to at most ", devices,
                        ", the devices of the smallest host");
  }
  return absl::StrCat("choose sizes so that ", name,
                      " and the axes that vary faster multiply to a divisor of "
                      "every host's number of devices, not to ",
                      block);
}

}  // namespace

AxisReport ReportAxis(const AxisTraffic& traffic, int64_t stride,
                      int64_t world_size, const Cluster& cluster) {
  return Reporter(traffic, stride, world_size, cluster).Make();
}

std::vector<std::string> AxisWarnings(const AxisReport& report,
                                      const Cluster& cluster) {
  const AxisPlacement& placement = report.placement;
  if (report.crossing_group < 0) return {};
  const bool torn = report.inner_group >= 0;
  if (!torn && !BelongsInHost(placement.axis.name)) return {};
  const int64_t crossing =
      placement.groups_at_level[static_cast<size_t>(LinkLevel::kNetwork)];
  int64_t all = 0;
  for (int64_t groups : placement.groups_at_level) all += groups;
  return {absl::StrCat(
      "axis ", placement.axis.name, ": ", crossing, " of ", all,
      " groups cross the network, such as ",
      DescribeGroup(placement, report.crossing_group, cluster),
      torn ? ", while others stay within a host; all wait for the slowest; "
           : "; every layer waits for this; ",
      Advice(placement, cluster))};
}

std::vector<std::string> WorldWarnings(int64_t world_size,
                                       const Cluster& cluster) {
  std::vector<std::string> warnings;
  const int64_t devices = cluster.num_devices();
  if (world_size != devices) {
    warnings.push_back(absl::StrCat(
        "the mesh has ", world_size, " ranks and the cluster ", devices,
        " devices: the last ", devices - world_size,
        " stay idle; enlarge an axis so that the sizes multiply to ", devices,
        ", or leave the idle hosts out"));
  }
  const HostGroup& first = cluster.groups().front();
  int64_t host = first.count;
  for (const HostGroup& group : cluster.groups().subspan(1)) {
    if (group.devices.size() != first.devices.size()) {
      warnings.push_back(absl::StrCat(
          "hosts are uneven: host ", *cluster.HostName(HostIndex(0)), " has ",
          first.devices.size(), " devices, host ",
          *cluster.HostName(HostIndex(host)), " has ", group.devices.size(),
          "; groups that fit the one may cross the other"));
      break;
    }
    host += group.count;
  }
  return warnings;
}

}  // namespace tessera::topology
