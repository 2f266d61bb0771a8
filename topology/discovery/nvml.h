// Reads the properties of this machine's GPUs from NVML, NVIDIA's driver
// library.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<NvmlGpu> gpus, ReadNvml());
//
// The library is opened at run time, so nothing is linked and a machine without
// it gets an error instead of a failure to start. Source of the entry points:
// NVML API Reference Guide, sections "Initialization and Cleanup", "Device
// Queries", "NvLink Methods".
#ifndef TESSERA_TOPOLOGY_DISCOVERY_NVML_H_
#define TESSERA_TOPOLOGY_DISCOVERY_NVML_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::topology {

inline constexpr std::string_view kNvmlLibrary = "libnvidia-ml.so.1";

struct NvmlGpu {
  std::string name;
  std::string bus_id;  // "0000:18:00.0"
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // Currently unused by all processes.
  // The bandwidth of all active NVLinks together, in bytes per second in one
  // direction; 0 if there are none or the library is too old to report it.
  double nvlink_bandwidth = 0;
  // For each returned GPU, true if NVLink connects to it.
  std::vector<bool> nvlink_peers;
};

// The GPUs that this process may use, in NVML's order (that of the PCI bus).
// NotFound if there is no such library, Unimplemented if it lacks an
// entry point, Unavailable if it fails to start (no driver), Internal if
// a query fails; the message names the library and the call. The library is
// shut down and closed before this returns.
absl::StatusOr<std::vector<NvmlGpu>> ReadNvml(
    std::string_view library = kNvmlLibrary);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_NVML_H_
