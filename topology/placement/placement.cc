#include "topology/placement/placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "topology/placement/axis_report.h"
#include "topology/placement/collective_cost.h"
#include "topology/placement/link_profile.h"

namespace tessera::topology {
namespace {

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

// What an axis costs at a stride, remembered.
class Costs {
 public:
  Costs(std::span<const AxisTraffic> traffic, const Cluster& cluster)
      : traffic_(traffic), cluster_(cluster), world_(WorldSize(traffic)) {}

  double Seconds(size_t axis, int64_t stride) {
    const auto [entry, is_new] = seconds_.try_emplace({axis, stride}, 0);
    if (is_new) entry->second = Compute(traffic_[axis], stride);
    return entry->second;
  }

  // In whole picoseconds: up to 9000 s their sums are exact, so equal orders
  // compare equal whatever order their axes are added in.
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

// Sets of axes as bits.
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

  // Places in `traffic` of the axes of the best order, fastest first.
  std::vector<size_t> BestOrder() {
    // rest_[set]: the least that all other axes cost once those of the set are
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
