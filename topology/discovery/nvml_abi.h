// The part of NVML's C interface that Tessera calls. Names and layouts are the
// library's (NVML API Reference Guide); they are declared here so that the
// build needs no NVIDIA header.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_NVML_ABI_H_
#define TESSERA_TOPOLOGY_DISCOVERY_NVML_ABI_H_

namespace tessera::topology::nvml_abi {

using Return = int;  // nvmlReturn_t
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;

using Device = struct DeviceHandle*;  // nvmlDevice_t

struct Memory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {  // nvmlPciInfo_t, as nvmlDeviceGetPciInfo_v3 fills it
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

inline constexpr unsigned int kNameBytes = 96;   // ..._NAME_V2_BUFFER_SIZE
inline constexpr unsigned int kMaxNvlinks = 18;  // NVML_NVLINK_MAX_LINKS
inline constexpr int kP2pCapsNvlink = 2;         // NVML_P2P_CAPS_INDEX_NVLINK
inline constexpr int kP2pStatusOk = 0;           // NVML_P2P_STATUS_OK
inline constexpr int kFeatureEnabled = 1;        // NVML_FEATURE_ENABLED

using Init = Return (*)();                            // nvmlInit_v2
using Shutdown = Return (*)();                        // nvmlShutdown
using ErrorString = const char* (*)(Return);          // nvmlErrorString
using GetCount = Return (*)(unsigned int*);           // nvmlDeviceGetCount_v2
using GetHandle = Return (*)(unsigned int, Device*);  // ...HandleByIndex_v2
using GetName = Return (*)(Device, char*, unsigned int);
using GetMemory = Return (*)(Device, Memory*);
using GetPci = Return (*)(Device, PciInfo*);
using GetP2p = Return (*)(Device, Device, int, int*);
using GetLinkState = Return (*)(Device, unsigned int, int*);
using GetLinkVersion = Return (*)(Device, unsigned int, unsigned int*);

}  // namespace tessera::topology::nvml_abi

#endif  // TESSERA_TOPOLOGY_DISCOVERY_NVML_ABI_H_
