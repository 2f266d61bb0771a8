#include "topology/discovery/machine_topology.h"

#include "absl/status/status.h"

#ifdef TESSERA_HAVE_HWLOC

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

static_assert(HWLOC_API_VERSION >= 0x20000, "hwloc 2.0 or newer is needed");

namespace tessera::topology {
namespace {

constexpr int kNvidiaVendor = 0x10de;
constexpr int kPciBaseClassDisplay = 0x03;
constexpr size_t kMaxText = size_t{64} << 20;

struct Destroy {
  void operator()(hwloc_topology_t topology) const {
    hwloc_topology_destroy(topology);
  }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

absl::Status SetSource(hwloc_topology_t topology, const MachineSource& source) {
  const std::string& text = source.text;
  int result = 0;
  if (text.size() > kMaxText) {
    return absl::InvalidArgumentError(
        absl::StrCat("the machine's description has ", text.size(),
                     " bytes; use at most ", kMaxText));
  }
  if (source.kind == MachineSource::Kind::kSynthetic) {
    result = hwloc_topology_set_synthetic(topology, text.c_str());
  } else if (source.kind == MachineSource::Kind::kXml) {
    // The length counts the terminating zero.
    result = hwloc_topology_set_xmlbuffer(topology, text.c_str(),
                                          static_cast<int>(text.size() + 1));
  }
  if (result == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "hwloc cannot parse the machine's description \"", text.substr(0, 60),
      "\"; give the synthetic form, such as \"package:2 "
      "core:4 pu:1\", or the XML that lstopo writes"));
}

absl::StatusOr<Topology> Load(const MachineSource& source) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return absl::ErrnoToStatus(errno, "hwloc_topology_init");
  }
  Topology topology(raw);
  TESSERA_RETURN_IF_ERROR(SetSource(raw, source));
  // Excludes plugins that start whole drivers, and pci, whose libpciaccess
  // leaks; hwloc also finds the PCI bus through sysfs.
  for (const char* plugin :
       {"cuda", "gl", "levelzero", "nvml", "opencl", "pci", "rsmi"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                  plugin);
  }
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) == 0) return topology;
  if (source.kind == MachineSource::Kind::kThisMachine) {
    return absl::ErrnoToStatus(errno, "hwloc_topology_load");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hwloc found no machine in the description \"",
                   source.text.substr(0, 60), "\""));
}

// The socket that contains an object, if a single socket does.
std::optional<int64_t> SocketOf(hwloc_topology_t topology, hwloc_obj_t object) {
  if (hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE) <= 1) return 0;
  while (object != nullptr && object->type != HWLOC_OBJ_PACKAGE) {
    object = object->parent;
  }
  if (object == nullptr) return std::nullopt;
  return object->logical_index;
}

// The index of the first NUMA node near an object, if it is near fewer than
// all.
std::optional<int64_t> NumaNodeOf(hwloc_topology_t topology,
                                  hwloc_obj_t object) {
  const int all = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  if (all <= 1) return 0;
  if (object->nodeset == nullptr || hwloc_bitmap_iszero(object->nodeset) ||
      hwloc_bitmap_weight(object->nodeset) == all) {
    return std::nullopt;
  }
  const int first = hwloc_bitmap_first(object->nodeset);
  const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(
      topology, static_cast<unsigned>(first));
  if (node == nullptr) return std::nullopt;
  return node->logical_index;
}

std::vector<MachineNumaNode> NumaNodes(hwloc_topology_t topology) {
  std::vector<MachineNumaNode> nodes;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE,
                                              object)) != nullptr) {
    MachineNumaNode node;
    node.os_index = object->os_index;
    node.socket = SocketOf(topology, object).value_or(0);
    node.memory_bytes =
        static_cast<int64_t>(object->attr->numanode.local_memory);
    nodes.push_back(node);
  }
  return nodes;
}

std::vector<MachinePu> Pus(hwloc_topology_t topology) {
  std::vector<MachinePu> pus;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU,
                                              object)) != nullptr) {
    // Without cores in the description, each thread counts as one.
    const hwloc_obj_t core =
        hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, object);
    MachinePu pu;
    pu.os_index = object->os_index;
    pu.core = core != nullptr ? core->logical_index : object->logical_index;
    pu.socket = SocketOf(topology, object).value_or(0);
    pu.numa_node = NumaNodeOf(topology, object).value_or(0);
    pus.push_back(pu);
  }
  return pus;
}

using PciDevice = decltype(hwloc_obj_attr_u::pcidev);

bool IsNvidiaGpu(const PciDevice& device) {
  return device.vendor_id == kNvidiaVendor &&
         device.class_id >> 8 == kPciBaseClassDisplay;
}

std::vector<MachineGpu> Gpus(hwloc_topology_t topology) {
  std::vector<MachineGpu> gpus;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_pcidev(topology, object)) != nullptr) {
    const PciDevice& device = object->attr->pcidev;
    if (!IsNvidiaGpu(device)) continue;
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, object);
    MachineGpu gpu;
    gpu.bus_id = absl::StrFormat("%04x:%02x:%02x.%x", device.domain, device.bus,
                                 device.dev, device.func);
    if (object->name != nullptr) gpu.model = object->name;
    gpu.socket = SocketOf(topology, near);
    gpu.numa_node = NumaNodeOf(topology, near);
    gpus.push_back(std::move(gpu));
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const MachineGpu& a, const MachineGpu& b) {
              return a.bus_id < b.bus_id;
            });
  return gpus;
}

}  // namespace

absl::StatusOr<MachineTopology> ReadMachineTopology(
    const MachineSource& source) {
  TESSERA_ASSIGN_OR_RETURN(const Topology topology, Load(source));
  MachineTopology machine;
  const int sockets =
      hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_PACKAGE);
  machine.sockets = std::max(sockets, 1);
  machine.numa_nodes = NumaNodes(topology.get());
  machine.pus = Pus(topology.get());
  machine.gpus = Gpus(topology.get());
  return machine;
}

}  // namespace tessera::topology

#else

namespace tessera::topology {

absl::StatusOr<MachineTopology> ReadMachineTopology(const MachineSource&) {
  return absl::UnimplementedError(
      "Tessera was built without hwloc, which reads a machine's topology; "
      "install hwloc's development package (libhwloc-dev on Debian) and build "
      "again, or describe the cluster in a spec or a JSON file");
}

}  // namespace tessera::topology

#endif  // TESSERA_HAVE_HWLOC
