// MachineTopology: the sockets, memories, cores and GPUs of one machine, as
// hwloc sees them.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_MACHINE_TOPOLOGY_H_
#define TESSERA_TOPOLOGY_DISCOVERY_MACHINE_TOPOLOGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::topology {

// The machine to describe. The text forms describe machines other than this
// one.
struct MachineSource {
  enum class Kind { kThisMachine, kSynthetic, kXml };

  static MachineSource ThisMachine() { return {}; }
  // hwloc's short form: "package:2 numa:1 core:4 pu:2".
  static MachineSource Synthetic(std::string description) {
    return {Kind::kSynthetic, std::move(description)};
  }
  // The document that `lstopo FILE.xml` writes.
  static MachineSource Xml(std::string document) {
    return {Kind::kXml, std::move(document)};
  }

  Kind kind = Kind::kThisMachine;
  std::string text;
};

struct MachineNumaNode {
  int64_t os_index = 0;
  int64_t socket = 0;
  int64_t memory_bytes = 0;
};

// A hardware thread.
struct MachinePu {
  int64_t os_index = 0;
  int64_t core = 0;  // Numbered across the machine from 0.
  int64_t socket = 0;
  int64_t numa_node = 0;  // Index into MachineTopology::numa_nodes.
};

// A display or 3D controller of NVIDIA on the PCI bus. The locality is missing
// if the firmware does not report it.
struct MachineGpu {
  std::string bus_id;  // "0000:18:00.0"
  std::string model;   // From the PCI database; may be empty.
  std::optional<int64_t> socket;
  std::optional<int64_t> numa_node;
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       MachineTopology machine,
//       ReadMachineTopology(MachineSource::ThisMachine()));
//   machine.pus.size();   // processing units this process may use
struct MachineTopology {
  int64_t sockets = 1;
  std::vector<MachineNumaNode> numa_nodes;
  std::vector<MachinePu> pus;
  std::vector<MachineGpu> gpus;  // In the order of their bus ids.
};

// The machine, without processing units that the operating system's cpuset
// denies to this process. A narrower binding of the process (taskset, mpirun
// --bind-to) is ignored, because it belongs to a rank, not to the machine.
// Unimplemented if Tessera is built without hwloc 2; InvalidArgument if hwloc
// rejects the text.
absl::StatusOr<MachineTopology> ReadMachineTopology(
    const MachineSource& source);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_MACHINE_TOPOLOGY_H_
