#include "topology/placement/placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "topology/placement/link_profile.h"

namespace tessera::topology {

namespace {

// The report on one axis of the chosen order.
struct AxisReport {
  AxisPlacement placement;  // All but seconds_per_step.
  // Bytes that leave each host in a step.
  std::vector<double> host_bytes;
  // A group that crosses the network, and one that does not; -1 if there is
  // none. A group is given by its first rank.
  int64_t crossing_group = -1;
  int64_t inner_group = -1;
};

// Axes with traffic in every layer, which should not leave a host.
bool BelongsInHost(std::string_view axis) { return axis == "tp"; }

// Bytes on each link to the next rank, summed over transfers of one shape.
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

  // Returns the link level to the next rank, and counts the bytes that the rank
  // sends out of its host.
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

  // The number of a rank's peers that only the network reaches.
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

// Suggests a change that keeps groups of the axis within hosts.
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
    return absl::StrCat("reduce the axes that vary faster, so that they and ",
                        name, " multiply to at most ", devices,
                        ", the devices of the smallest host");
  }
  return absl::StrCat("choose sizes so that ", name,
                      " and the axes that vary faster multiply to a divisor of "
                      "every host's number of devices, not to ",
                      block);
}

// O(world_size), and O(world_size * size) for an all-to-all on hosts that share
// NVLink domains.
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
          "; groups that fit into one may cross the other"));
      break;
    }
    host += group.count;
  }
  return warnings;
}

int64_t WorldSize(std::span<const AxisTraffic> traffic) {
  int64_t world = 1;
  for (const AxisTraffic& item : traffic) world *= item.axis.size.value();
  return world;
}

absl::Status Check(std::span<const AxisTraffic> traffic,
                   const Cluster& cluster) {
  TESSERA_RETURN_IF_ERROR(ValidateTraffic(traffic));
  const int64_t world = WorldSize(traffic);
  if (world <= cluster.num_devices()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the mesh ", FormatAxes(AxesOf(traffic)), " has ", world,
                   " ranks, but the cluster has ", cluster.num_devices(),
                   " devices; use smaller axes or more hosts"));
}

// A cache of the cost of an axis at a stride.
class Costs {
 public:
  Costs(std::span<const AxisTraffic> traffic, const Cluster& cluster)
      : traffic_(traffic), cluster_(cluster), world_(WorldSize(traffic)) {}

  double Seconds(size_t axis, int64_t stride) {
    const auto [entry, is_new] = seconds_.try_emplace({axis, stride}, 0);
    if (is_new) entry->second = Compute(traffic_[axis], stride);
    return entry->second;
  }

  // In whole picoseconds, whose sums are exact up to 9000 s, so equal orders
  // compare equal regardless of the order of addition.
  double Picoseconds(size_t axis, int64_t stride) {
    return std::round(Seconds(axis, stride) * 1e12);
  }

 private:
  double Compute(const AxisTraffic& traffic, int64_t stride) const {
    const int64_t size = traffic.axis.size.value();
    if (size == 1 || traffic.transfers.empty()) return 0;
    return TrafficSeconds(traffic.transfers,
                          MeasureLinks(cluster_, world_, size, stride,
                                       NeedsOf(traffic.transfers)));
  }

  std::span<const AxisTraffic> traffic_;
  const Cluster& cluster_;
  const int64_t world_;
  absl::flat_hash_map<std::pair<size_t, int64_t>, double> seconds_;
};

// Represents sets of axes as bits.
class Search {
 public:
  Search(std::span<const AxisTraffic> traffic, Costs& costs)
      : count_(traffic.size()),
        strides_(size_t{1} << count_, 1),
        rest_(size_t{1} << count_, 0),
        costs_(costs) {
    for (size_t set = 1; set < strides_.size(); ++set) {
      const auto lowest = static_cast<size_t>(__builtin_ctzll(set));
      strides_[set] =
          strides_[set & (set - 1)] * traffic[lowest].axis.size.value();
    }
  }

  // Indices in `traffic` of the axes of the best order, fastest first.
  std::vector<size_t> BestOrder() {
    // rest_[set] is the least cost of all other axes if the axes of the set are
    // the fastest.
    for (size_t set = rest_.size() - 1; set-- > 0;) rest_[set] = Least(set);
    std::vector<size_t> order;
    for (size_t set = 0; order.size() < count_;) {
      order.push_back(First(set));
      set |= size_t{1} << order.back();
    }
    return order;
  }

 private:
  bool Has(size_t set, size_t axis) const { return set >> axis & 1; }

  double WithNext(size_t set, size_t axis) {
    return costs_.Picoseconds(axis, strides_[set]) +
           rest_[set | size_t{1} << axis];
  }

  double Least(size_t set) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t axis = 0; axis < count_; ++axis) {
      if (!Has(set, axis)) least = std::min(least, WithNext(set, axis));
    }
    return least;
  }

  // The first axis that may come next in a best order.
  size_t First(size_t set) {
    for (size_t axis = 0; axis < count_; ++axis) {
      if (!Has(set, axis) && WithNext(set, axis) == rest_[set]) return axis;
    }
    return 0;
  }

  size_t count_;
  std::vector<int64_t> strides_;
  std::vector<double> rest_;
  Costs& costs_;
};

Placement MakePlacement(std::span<const AxisTraffic> traffic,
                        std::span<const size_t> order, Costs& costs,
                        const Cluster& cluster) {
  Placement placement;
  placement.world_size = WorldSize(traffic);
  placement.device_count = cluster.num_devices();
  placement.warnings = WorldWarnings(placement.world_size, cluster);
  std::vector<double> host_bytes(static_cast<size_t>(cluster.num_hosts()));
  int64_t stride = 1;
  for (size_t place : order) {
    AxisReport report =
        ReportAxis(traffic[place], stride, placement.world_size, cluster);
    report.placement.seconds_per_step = costs.Seconds(place, stride);
    placement.seconds_per_step += report.placement.seconds_per_step;
    for (size_t host = 0; host < host_bytes.size(); ++host) {
      host_bytes[host] += report.host_bytes[host];
    }
    for (std::string& warning : AxisWarnings(report, cluster)) {
      placement.warnings.push_back(std::move(warning));
    }
    stride *= traffic[place].axis.size.value();
    placement.order.push_back(traffic[place].axis);
    placement.axes.push_back(std::move(report.placement));
  }
  placement.busiest_host_bytes =
      *std::max_element(host_bytes.begin(), host_bytes.end());
  return placement;
}

// "1.5 GB" to three digits.
std::string ShowBytes(double bytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B",  "kB", "MB", "GB",
                                                      "TB", "PB", "EB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", bytes, kUnits[unit]);
}

std::string ShowSeconds(double seconds) {
  if (seconds >= 0.9995) return absl::StrFormat("%.3g s", seconds);
  if (seconds >= 0.9995e-3) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g us", seconds * 1e6);
}

// "8 nvlink, 2 network".
std::string ShowLevels(const AxisPlacement& axis) {
  std::string text;
  for (LinkLevel level : kAllLinkLevels) {
    const int64_t groups = axis.groups_at_level[static_cast<size_t>(level)];
    if (groups == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", groups, " ",
                    LinkLevelName(level));
  }
  return text;
}

}  // namespace

absl::StatusOr<Placement> FindPlacement(std::span<const AxisTraffic> traffic,
                                        const Cluster& cluster) {
  TESSERA_RETURN_IF_ERROR(Check(traffic, cluster));
  Costs costs(traffic, cluster);
  const std::vector<size_t> order = Search(traffic, costs).BestOrder();
  return MakePlacement(traffic, order, costs, cluster);
}

absl::StatusOr<Placement> EvaluatePlacement(
    std::span<const AxisTraffic> traffic, const Cluster& cluster) {
  TESSERA_RETURN_IF_ERROR(Check(traffic, cluster));
  Costs costs(traffic, cluster);
  std::vector<size_t> order(traffic.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  return MakePlacement(traffic, order, costs, cluster);
}

std::string Describe(const Placement& placement) {
  std::string text = absl::StrFormat(
      "%d ranks on %d devices, %s a step, at most %s out of a host\n",
      placement.world_size, placement.device_count,
      ShowSeconds(placement.seconds_per_step),
      ShowBytes(placement.busiest_host_bytes));
  absl::StrAppendFormat(&text, "%-12s %6s %8s %12s %14s  %s\n", "axis", "size",
                        "stride", "a step", "out of a host", "groups by level");
  for (const AxisPlacement& axis : placement.axes) {
    absl::StrAppendFormat(&text, "%-12s %6d %8d %12s %14s  %s\n",
                          axis.axis.name, axis.axis.size.value(), axis.stride,
                          ShowSeconds(axis.seconds_per_step),
                          ShowBytes(axis.busiest_host_bytes), ShowLevels(axis));
  }
  for (const std::string& warning : placement.warnings) {
    absl::StrAppend(&text, "warning: ", warning, "\n");
  }
  return text;
}

}  // namespace tessera::topology
