// A library that behaves like NVIDIA's libnvidia-ml on a machine with four
// GPUs. Environment variables configure it:
//   FAKE_NVML_FAIL     the call that fails; "none"
//   FAKE_NVML_CODE     its error code; 999
//   FAKE_NVML_GPUS     the number of GPUs; 4
//   FAKE_NVML_NVLINK   "all", "pairs" (0-1 and 2-3) or "none"; all
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "topology/discovery/nvml_abi.h"

namespace {

namespace abi = tessera::topology::nvml_abi;

int started = 0;

std::string Told(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : fallback;
}

abi::Return Answer(const char* call) {
  if (Told("FAKE_NVML_FAIL", "none") != call) return abi::kSuccess;
  return std::atoi(Told("FAKE_NVML_CODE", "999").c_str());
}

// A handle is the GPU's number plus one.
unsigned int NumberOf(abi::Device device) {
  return static_cast<unsigned int>(reinterpret_cast<uintptr_t>(device) - 1);
}

}  // namespace

extern "C" {

// Calls of nvmlInit_v2 minus calls of nvmlShutdown.
int fake_nvml_started() { return started; }

abi::Return nvmlInit_v2() {
  const abi::Return answer = Answer("nvmlInit_v2");
  if (answer == abi::kSuccess) ++started;
  return answer;
}

abi::Return nvmlShutdown() {
  --started;
  return abi::kSuccess;
}

const char* nvmlErrorString(abi::Return code) {
  return code == 9   ? "Driver Not Loaded"
         : code == 7 ? nullptr
                     : "Unknown Error";
}

abi::Return nvmlDeviceGetCount_v2(unsigned int* count) {
  *count =
      static_cast<unsigned int>(std::atoi(Told("FAKE_NVML_GPUS", "4").c_str()));
  return Answer("nvmlDeviceGetCount_v2");
}

abi::Return nvmlDeviceGetHandleByIndex_v2(unsigned int index,
                                          abi::Device* device) {
  *device = reinterpret_cast<abi::Device>(uintptr_t{index} + 1);
  // Only GPU 1 can fail, so that a test can hide one GPU from the process.
  return index == 1 ? Answer("nvmlDeviceGetHandleByIndex_v2") : abi::kSuccess;
}

abi::Return nvmlDeviceGetName(abi::Device device, char* name,
                              unsigned int length) {
  std::snprintf(name, length, "Fake GPU %u", NumberOf(device));
  return Answer("nvmlDeviceGetName");
}

// GPU 1 has a quarter of its memory left.
abi::Return nvmlDeviceGetMemoryInfo(abi::Device device, abi::Memory* memory) {
  const abi::Return answer = Answer("nvmlDeviceGetMemoryInfo");
  if (answer != abi::kSuccess) return answer;
  memory->total = 1ull << 36;
  memory->free = memory->total / (NumberOf(device) == 1 ? 4 : 1);
  memory->used = memory->total - memory->free;
  return answer;
}

#ifndef TESSERA_OLD_NVML
abi::Return nvmlDeviceGetPciInfo_v3(abi::Device device, abi::PciInfo* info) {
  constexpr unsigned int kBuses[] = {0x18, 0x2a, 0x9a, 0xc0};
  *info = {};
  info->bus = kBuses[NumberOf(device) % 4];
  return Answer("nvmlDeviceGetPciInfo_v3");
}
#endif

abi::Return nvmlDeviceGetP2PStatus(abi::Device a, abi::Device b, int index,
                                   int* status) {
  const std::string links = Told("FAKE_NVML_NVLINK", "all");
  const bool linked = links == "all" ||
                      (links == "pairs" && NumberOf(a) / 2 == NumberOf(b) / 2);
  *status = index == abi::kP2pCapsNvlink && linked ? abi::kP2pStatusOk : 5;
  return Answer("nvmlDeviceGetP2PStatus");
}

abi::Return nvmlDeviceGetNvLinkState(abi::Device device, unsigned int link,
                                     int* state) {
  if (Told("FAKE_NVML_NVLINK", "all") == "none" || link >= 12) {
    return abi::kNotSupported;
  }
  // GPU 3 has lost two of its links.
  *state = NumberOf(device) == 3 && link < 2 ? 0 : abi::kFeatureEnabled;
  return Answer("nvmlDeviceGetNvLinkState");
}

abi::Return nvmlDeviceGetNvLinkVersion(abi::Device, unsigned int,
                                       unsigned int* version) {
  *version = 3;
  return Answer("nvmlDeviceGetNvLinkVersion");
}

}  // extern "C"
