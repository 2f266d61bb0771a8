#include "topology/discovery/cluster_discovery.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

// The system's or the caller's name, in the letters that a host name may have.
std::string HostNameFor(const DiscoveryOptions& options) {
  std::string name = options.host_name;
  if (name.empty()) {
    std::array<char, 256> buffer = {};
    if (gethostname(buffer.data(), buffer.size() - 1) == 0) {
      name = buffer.data();
    }
  }
  if (name.empty()) return "localhost";
  name.resize(std::min(name.size(), kMaxHostNameLength));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_') c = '-';
  }
  return name;
}

std::string Printable(std::string_view text) {
  std::string result(text.substr(0, kMaxDeviceTextLength));
  for (char& c : result) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return result;
}

int64_t MemoryShare(const MachineTopology& machine, int64_t numa_node,
                    int64_t slots) {
  const auto index = static_cast<size_t>(numa_node);
  if (index >= machine.numa_nodes.size()) return 0;
  return machine.numa_nodes[index].memory_bytes / std::max<int64_t>(slots, 1);
}

// Repeats each slot, so that there are enough for `ranks`.
void ShareSlots(int64_t ranks, std::vector<Device>& slots,
                std::vector<std::string>& notes) {
  const auto cores = static_cast<int64_t>(slots.size());
  if (ranks <= cores || ranks > cores * kMaxSlotsPerCore) return;
  const int64_t share = (ranks + cores - 1) / cores;
  std::vector<Device> shared;
  for (Device slot : slots) {
    slot.memory_bytes /= share;
    shared.insert(shared.end(), static_cast<size_t>(share), slot);
  }
  slots = std::move(shared);
  notes.push_back(absl::StrCat("this host has ", cores, " cores for ", ranks,
                               " ranks; up to ", share,
                               " ranks are assumed to share one"));
}

// One device for each core, or each hardware thread, in the machine's order.
std::vector<Device> CpuDevices(const MachineTopology& machine, CpuSlot slot) {
  std::vector<Device> devices;
  int64_t last_core = -1;
  for (const MachinePu& pu : machine.pus) {
    if (slot == CpuSlot::kCore && pu.core == last_core) continue;
    last_core = pu.core;
    Device device;
    device.kind = DeviceKind::kCpu;
    device.socket = pu.socket;
    device.numa_node = pu.numa_node;
    devices.push_back(device);
  }
  for (Device& device : devices) {
    const auto slots = std::count_if(
        devices.begin(), devices.end(), [&device](const Device& other) {
          return other.numa_node == device.numa_node;
        });
    device.memory_bytes = MemoryShare(machine, device.numa_node, slots);
  }
  return devices;
}

// Sets socket and NUMA node from the PCI bus.
void Locate(const MachineTopology& machine, Device& device,
            std::vector<std::string>& notes) {
  const auto found = std::find_if(
      machine.gpus.begin(), machine.gpus.end(),
      [&](const MachineGpu& gpu) { return gpu.bus_id == device.bus_id; });
  const bool known = found != machine.gpus.end() && found->numa_node;
  if (!known) {
    notes.push_back(absl::StrCat("GPU ", device.bus_id,
                                 ": its NUMA node is not known; 0 is assumed"));
    return;
  }
  const auto node = static_cast<size_t>(*found->numa_node);
  device.numa_node = *found->numa_node;
  device.socket = found->socket.value_or(
      node < machine.numa_nodes.size() ? machine.numa_nodes[node].socket : 0);
}

std::vector<Device> PciDevices(const MachineTopology& machine,
                               std::vector<std::string>& notes) {
  std::vector<Device> devices;
  for (const MachineGpu& gpu : machine.gpus) {
    Device device;
    device.model = Printable(gpu.model);
    device.bus_id = gpu.bus_id;
    Locate(machine, device, notes);
    devices.push_back(std::move(device));
  }
  return devices;
}

std::vector<Device> NvmlDevices(const MachineTopology& machine,
                                const std::vector<NvmlGpu>& gpus,
                                std::vector<std::string>& notes) {
  std::vector<std::vector<bool>> linked;
  for (const NvmlGpu& gpu : gpus) linked.push_back(gpu.nvlink_peers);
  const std::vector<int64_t> domains = NvlinkDomains(linked);
  std::vector<Device> devices;
  for (size_t i = 0; i < gpus.size(); ++i) {
    Device device;
    device.model = Printable(gpus[i].name);
    device.bus_id = gpus[i].bus_id;
    device.memory_bytes = std::max<int64_t>(gpus[i].memory_bytes, 0);
    device.nvlink_domain = domains[i];
    Locate(machine, device, notes);
    devices.push_back(std::move(device));
  }
  return devices;
}

// Uses the lowest bandwidth of all linked GPUs, if NVML reports any.
void SetNvlinkBandwidth(const std::vector<NvmlGpu>& gpus, LinkTable& links) {
  double least = 0;
  for (const NvmlGpu& gpu : gpus) {
    if (gpu.nvlink_bandwidth <= 0) continue;
    least = least > 0 ? std::min(least, gpu.nvlink_bandwidth)
                      : gpu.nvlink_bandwidth;
  }
  if (least > 0) LinkAt(links, LinkLevel::kNvlink).bandwidth = least;
}

// Finds GPUs with NVML or, without it, on the PCI bus. Adds none if there are
// none.
void FindGpus(const DiscoveryOptions& options, const MachineTopology& machine,
              HostGroup& host, std::vector<std::string>& notes) {
  if (!options.nvml_library.empty()) {
    const auto gpus = ReadNvml(options.nvml_library);
    if (gpus.ok() && !gpus->empty()) {
      host.devices = NvmlDevices(machine, *gpus, notes);
      SetNvlinkBandwidth(*gpus, host.links);
      return;
    }
    if (!gpus.ok() && !machine.gpus.empty()) {
      notes.push_back(absl::StrCat(gpus.status().message(),
                                   "; the GPUs' memory and NVLink are not "
                                   "known"));
    }
  }
  host.devices = PciDevices(machine, notes);
}

}  // namespace

std::vector<int64_t> NvlinkDomains(
    const std::vector<std::vector<bool>>& linked) {
  const auto both = [&linked](size_t a, size_t b) {
    return b < linked[a].size() && a < linked[b].size() && linked[a][b] &&
           linked[b][a];
  };
  std::vector<std::vector<size_t>> domains;
  for (size_t gpu = 0; gpu < linked.size(); ++gpu) {
    const auto home = std::find_if(
        domains.begin(), domains.end(), [&](const std::vector<size_t>& domain) {
          return std::all_of(domain.begin(), domain.end(),
                             [&](size_t other) { return both(gpu, other); });
        });
    if (home != domains.end()) {
      home->push_back(gpu);
    } else {
      domains.push_back({gpu});
    }
  }
  std::vector<int64_t> result(linked.size(), Device::kNoNvlink);
  int64_t number = 0;
  for (const std::vector<size_t>& domain : domains) {
    if (domain.size() == 1) continue;
    for (size_t gpu : domain) result[gpu] = number;
    ++number;
  }
  return result;
}

absl::StatusOr<DiscoveredCluster> DiscoverCluster(
    const DiscoveryOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(MachineTopology machine,
                           ReadMachineTopology(options.machine));
  std::vector<std::string> notes;
  HostGroup host;
  host.name = HostNameFor(options);
  if (options.use_gpus) FindGpus(options, machine, host, notes);
  host.nics = std::clamp<int64_t>(static_cast<int64_t>(host.devices.size()), 1,
                                  kMaxNics);
  if (host.devices.empty()) {
    host.devices = CpuDevices(machine, options.cpu_slot);
    ShareSlots(options.ranks, host.devices, notes);
    host.links = CpuLinks();
  }
  std::vector<HostGroup> hosts;
  hosts.push_back(std::move(host));
  TESSERA_ASSIGN_OR_RETURN(Cluster cluster, Cluster::Create(std::move(hosts)));
  return DiscoveredCluster{std::move(cluster), std::move(machine),
                           std::move(notes)};
}

}  // namespace tessera::topology
