// Cluster: hosts, their devices, and how fast any two devices reach each other.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=16,gpus=8"));
//   cluster.num_devices();                                       // 128
//   TESSERA_ASSIGN_OR_RETURN(
//       Link link, cluster.LinkBetween(DeviceIndex(7), DeviceIndex(8)));
//   link.level;                                   // LinkLevel::kNetwork
//   link.speed.bandwidth;                         // bytes per second
//
// Devices are numbered across the cluster: host by host, and within a host in
// the order its group lists them. Alike hosts are stored once, so a cluster of
// a million devices takes as little memory as its number of groups does.
// Everything for one device is O(log groups). Immutable and cheap to copy; any
// thread may read it.
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_int.h"
#include "topology/cluster/host.h"
#include "topology/cluster/link.h"

namespace tessera::topology {

// A device's number in the cluster, and a host's.
using DeviceIndex = StrongInt<struct DeviceIndexTag>;
using HostIndex = StrongInt<struct HostIndexTag>;

// Where a device is. Made by Cluster::Locate.
struct DevicePlace {
  HostIndex host;
  int64_t group = 0;   // The host's group, an index into groups().
  int64_t member = 0;  // The host's number in its group.
  int64_t local = 0;   // The device's number on its host.

  friend bool operator==(const DevicePlace&, const DevicePlace&) = default;
};

class Cluster {
 public:
  // InvalidArgument that lists what HostProblems finds (the first 20).
  static absl::StatusOr<Cluster> Create(std::vector<HostGroup> groups);

  int64_t num_hosts() const { return state_->first_host.back(); }
  int64_t num_devices() const { return state_->first_device.back(); }
  std::span<const HostGroup> groups() const { return state_->groups; }

  bool Contains(DeviceIndex device) const {
    return device.value() >= 0 && device.value() < num_devices();
  }
  bool Contains(HostIndex host) const {
    return host.value() >= 0 && host.value() < num_hosts();
  }

  // OutOfRange where the cluster has no such device, host or name; the message
  // says how many there are.
  absl::StatusOr<DevicePlace> Locate(DeviceIndex device) const;
  absl::StatusOr<HostIndex> HostOf(DeviceIndex device) const;
  absl::StatusOr<Device> DeviceAt(DeviceIndex device) const;
  absl::StatusOr<DeviceIndex> FirstDevice(HostIndex host) const;
  absl::StatusOr<int64_t> DeviceCount(HostIndex host) const;
  absl::StatusOr<std::string> HostName(HostIndex host) const;
  // Linear in the number of groups.
  absl::StatusOr<HostIndex> FindHost(std::string_view name) const;

  // The link from one device to another, the same both ways. Between hosts the
  // latency is the higher and the bandwidth the lower of their two; bandwidth
  // is that of one card, which other devices of the host may be using as well.
  absl::StatusOr<Link> LinkBetween(DeviceIndex a, DeviceIndex b) const;

  // The same for places that Locate made; cannot fail.
  Link LinkBetween(const DevicePlace& a, const DevicePlace& b) const;

  // What all network cards of a host carry together, in bytes per second and
  // one direction.
  absl::StatusOr<double> NetworkBandwidth(HostIndex host) const;

  friend bool operator==(const Cluster& a, const Cluster& b) {
    return a.state_->groups == b.state_->groups;
  }

 private:
  struct State {
    std::vector<HostGroup> groups;
    // The first host and device of each group, and behind the last.
    std::vector<int64_t> first_host;
    std::vector<int64_t> first_device;
  };

  explicit Cluster(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}

  absl::Status CheckHost(HostIndex host) const;
  size_t GroupOf(HostIndex host) const;
  const HostGroup& GroupAt(int64_t group) const {
    return state_->groups[static_cast<size_t>(group)];
  }

  std::shared_ptr<const State> state_;
};

// One line for people: "16 hosts, 128 devices; 16 x 8 gpu (H100)".
std::string Describe(const Cluster& cluster);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_
