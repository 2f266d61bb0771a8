#include "topology/discovery/nvml.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/os/shared_library.h"
#include "base/status_macros.h"
#include "topology/discovery/nvml_abi.h"

namespace tessera::topology {
namespace {

constexpr unsigned int kMaxGpus = 1024;

// One direction of one link, by NVLink version. Source: NVIDIA's data sheets of
// P100 (20), V100, A100 and H100 (25 each) and B200 (50).
double BytesPerLink(unsigned int version) {
  constexpr std::array<double, 6> kBandwidth = {0,    20e9, 25e9,
                                                25e9, 25e9, 50e9};
  return kBandwidth[std::min<size_t>(version, kBandwidth.size() - 1)];
}

// The open library with its entry points. Shut down and closed at the end.
class Nvml {
 public:
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(std::string_view path);
  ~Nvml() {
    if (started_) shutdown_();
  }

  absl::StatusOr<std::vector<nvml_abi::Device>> Devices() const;
  absl::StatusOr<NvmlGpu> Describe(nvml_abi::Device device) const;
  bool Linked(nvml_abi::Device a, nvml_abi::Device b) const;

 private:
  explicit Nvml(SharedLibrary library)
      : path_(library.name()), library_(std::move(library)) {}

  absl::Status LoadAll();
  absl::Status Start();
  double NvlinkBandwidth(nvml_abi::Device device) const;

  template <typename Function>
  absl::Status Require(const char* name, Function*& function) const {
    TESSERA_RETURN_IF_ERROR(library_.Require(name, function),
                            Annotate(_, "update NVIDIA's driver"));
    return absl::OkStatus();
  }
  absl::Status Failed(std::string_view call, nvml_abi::Return code) const {
    return absl::InternalError(Message(call, code));
  }
  std::string Message(std::string_view call, nvml_abi::Return code) const;

  std::string path_;
  SharedLibrary library_;
  bool started_ = false;
  nvml_abi::Init init_ = nullptr;
  nvml_abi::Shutdown shutdown_ = nullptr;
  nvml_abi::ErrorString error_string_ = nullptr;
  nvml_abi::GetCount get_count_ = nullptr;
  nvml_abi::GetHandle get_handle_ = nullptr;
  nvml_abi::GetName get_name_ = nullptr;
  nvml_abi::GetMemory get_memory_ = nullptr;
  nvml_abi::GetPci get_pci_ = nullptr;
  nvml_abi::GetP2p get_p2p_ = nullptr;
  nvml_abi::GetLinkState get_link_state_ = nullptr;
  nvml_abi::GetLinkVersion get_link_version_ = nullptr;
};

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(std::string_view path) {
  const std::string names[] = {std::string(path)};
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(names);
  TESSERA_RETURN_IF_ERROR(
      library.status(),
      Annotate(_, "cannot open NVML, which comes with NVIDIA's driver"));
  std::unique_ptr<Nvml> nvml(new Nvml(*std::move(library)));
  TESSERA_RETURN_IF_ERROR(nvml->LoadAll());
  TESSERA_RETURN_IF_ERROR(nvml->Start());
  return nvml;
}

absl::Status Nvml::LoadAll() {
  TESSERA_RETURN_IF_ERROR(Require("nvmlInit_v2", init_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlShutdown", shutdown_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlErrorString", error_string_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlDeviceGetCount_v2", get_count_));
  TESSERA_RETURN_IF_ERROR(
      Require("nvmlDeviceGetHandleByIndex_v2", get_handle_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlDeviceGetName", get_name_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlDeviceGetMemoryInfo", get_memory_));
  TESSERA_RETURN_IF_ERROR(Require("nvmlDeviceGetPciInfo_v3", get_pci_));
  library_.Find("nvmlDeviceGetP2PStatus", get_p2p_);
  library_.Find("nvmlDeviceGetNvLinkState", get_link_state_);
  library_.Find("nvmlDeviceGetNvLinkVersion", get_link_version_);
  return absl::OkStatus();
}

absl::Status Nvml::Start() {
  const nvml_abi::Return code = init_();
  started_ = code == nvml_abi::kSuccess;
  if (started_) return absl::OkStatus();
  return absl::UnavailableError(Message("nvmlInit_v2", code));
}

std::string Nvml::Message(std::string_view call, nvml_abi::Return code) const {
  const char* reason = error_string_(code);
  return absl::StrCat(call, " of ", path_, " fails with code ", code, ": ",
                      reason != nullptr ? reason : "no reason given");
}

absl::StatusOr<std::vector<nvml_abi::Device>> Nvml::Devices() const {
  unsigned int count = 0;
  nvml_abi::Return code = get_count_(&count);
  if (code != nvml_abi::kSuccess) return Failed("nvmlDeviceGetCount_v2", code);
  if (count > kMaxGpus) {
    return absl::InternalError(
        absl::StrCat(path_, " counts ", count, " GPUs, which cannot be"));
  }
  std::vector<nvml_abi::Device> devices;
  for (unsigned int i = 0; i < count; ++i) {
    nvml_abi::Device device = nullptr;
    code = get_handle_(i, &device);
    // The GPU is counted, but its cgroup hides it from this process.
    if (code == nvml_abi::kNoPermission) continue;
    if (code != nvml_abi::kSuccess) {
      return Failed(absl::StrCat("nvmlDeviceGetHandleByIndex_v2(", i, ")"),
                    code);
    }
    devices.push_back(device);
  }
  return devices;
}

absl::StatusOr<NvmlGpu> Nvml::Describe(nvml_abi::Device device) const {
  std::array<char, nvml_abi::kNameBytes> name = {};
  nvml_abi::Return code = get_name_(device, name.data(), nvml_abi::kNameBytes);
  if (code != nvml_abi::kSuccess) return Failed("nvmlDeviceGetName", code);
  nvml_abi::Memory memory = {};
  code = get_memory_(device, &memory);
  // Integrated GPUs share the host's memory and do not report its size.
  if (code != nvml_abi::kSuccess && code != nvml_abi::kNotSupported) {
    return Failed("nvmlDeviceGetMemoryInfo", code);
  }
  nvml_abi::PciInfo pci = {};
  code = get_pci_(device, &pci);
  if (code != nvml_abi::kSuccess) {
    return Failed("nvmlDeviceGetPciInfo_v3", code);
  }
  NvmlGpu gpu;
  gpu.name.assign(name.data(), strnlen(name.data(), name.size()));
  gpu.bus_id =
      absl::StrFormat("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  gpu.memory_bytes = static_cast<int64_t>(memory.total);
  gpu.free_bytes = static_cast<int64_t>(memory.free);
  gpu.nvlink_bandwidth = NvlinkBandwidth(device);
  return gpu;
}

double Nvml::NvlinkBandwidth(nvml_abi::Device device) const {
  if (get_link_state_ == nullptr || get_link_version_ == nullptr) return 0;
  double total = 0;
  for (unsigned int link = 0; link < nvml_abi::kMaxNvlinks; ++link) {
    int state = 0;
    unsigned int version = 0;
    // NVML returns an error for links that the GPU does not have.
    if (get_link_state_(device, link, &state) != nvml_abi::kSuccess) continue;
    if (state != nvml_abi::kFeatureEnabled) continue;
    if (get_link_version_(device, link, &version) != nvml_abi::kSuccess) {
      continue;
    }
    total += BytesPerLink(version);
  }
  return total;
}

bool Nvml::Linked(nvml_abi::Device a, nvml_abi::Device b) const {
  if (get_p2p_ == nullptr) return false;
  int status = -1;
  return get_p2p_(a, b, nvml_abi::kP2pCapsNvlink, &status) ==
             nvml_abi::kSuccess &&
         status == nvml_abi::kP2pStatusOk;
}

}  // namespace

absl::StatusOr<std::vector<NvmlGpu>> ReadNvml(std::string_view library) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml,
                           Nvml::Open(library));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<nvml_abi::Device> devices,
                           nvml->Devices());
  std::vector<NvmlGpu> gpus;
  for (nvml_abi::Device device : devices) {
    TESSERA_ASSIGN_OR_RETURN(NvmlGpu gpu, nvml->Describe(device));
    for (nvml_abi::Device other : devices) {
      gpu.nvlink_peers.push_back(other != device &&
                                 nvml->Linked(device, other));
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace tessera::topology
