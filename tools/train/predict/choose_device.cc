#include "tools/train/predict/choose_device.h"

#include <algorithm>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "topology/device_mesh.h"

namespace tessera::train {
namespace {

using Gpus = std::vector<CudaDeviceInfo>;

std::string GpuName(const CudaDeviceInfo& gpu) {
  return absl::StrCat("GPU ", gpu.ordinal, " (", gpu.properties.name, ")");
}

// An error with the reason why each GPU is not usable.
absl::Status NoneUsable(const Gpus& found) {
  return absl::FailedPreconditionError(absl::StrJoin(
      found, "; ", [](std::string* text, const CudaDeviceInfo& gpu) {
        absl::StrAppend(text, gpu.usable.message());
      }));
}

// True for "cuda:0" and "cuda:0,2,3".
bool IsList(std::string_view device) {
  return absl::StartsWith(device, "cuda:");
}

// The GPUs of a list, in its order.
absl::StatusOr<Gpus> ListedIn(std::string_view device, const Gpus& found) {
  TESSERA_ASSIGN_OR_RETURN(
      const topology::DeviceMesh listed,
      topology::DeviceMesh::Parse(absl::StripPrefix(device, "cuda:")));
  Gpus gpus;
  for (const topology::DeviceId id : listed.devices()) {
    if (id.value() >= static_cast<int64_t>(found.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("this process sees ", found.size(),
                       found.size() == 1 ? " GPU" : " GPUs",
                       ", numbered from 0; give some of them, or check "
                       "CUDA_VISIBLE_DEVICES"));
    }
    gpus.push_back(found[static_cast<size_t>(id.value())]);
    TESSERA_RETURN_IF_ERROR(gpus.back().usable);
  }
  return gpus;
}

absl::StatusOr<Gpus> UsableOf(std::string_view device, const Gpus& found) {
  if (IsList(device)) return ListedIn(device, found);
  Gpus usable;
  for (const CudaDeviceInfo& gpu : found) {
    if (gpu.usable.ok()) usable.push_back(gpu);
  }
  if (usable.empty()) return NoneUsable(found);
  return usable;
}

absl::Status CheckCount(std::string_view device, const Gpus& usable,
                        const DeviceNeeds& needs) {
  const auto gpus = static_cast<int64_t>(usable.size());
  if (needs.has_own_gpu || needs.shares_gpus || needs.ranks_here <= gpus) {
    return absl::OkStatus();
  }
  const std::string there =
      IsList(device)
          ? absl::StrCat(gpus, gpus == 1 ? " GPU was" : " GPUs were", " chosen")
          : absl::StrCat("there ", gpus == 1 ? "is " : "are ", gpus, " usable");
  return absl::FailedPreconditionError(absl::StrCat(
      needs.ranks_here, " ranks on this machine need a GPU each, and ", there,
      "; give a --mesh of at most ", gpus, gpus == 1 ? " rank" : " ranks",
      IsList(device) ? " or --device=cuda" : "",
      ", --engine=in_process, whose ranks share GPUs, or start the ranks on "
      "more machines"));
}

int64_t FreeBytes(const CudaDeviceInfo& gpu, const DeviceNeeds& needs) {
  const auto found =
      needs.free_bytes.find(absl::AsciiStrToLower(gpu.properties.pci_bus_id));
  const int64_t total = gpu.properties.total_bytes;
  return found == needs.free_bytes.end() ? total
                                         : std::min(total, found->second);
}

int64_t RanksOf(const DeviceNeeds& needs) {
  return needs.has_own_gpu ? 1 : needs.ranks_here;
}

// The GPU with the least free memory among those that ranks use.
const CudaDeviceInfo& TightestOf(const Gpus& usable, const DeviceNeeds& needs) {
  const auto used = std::span(usable).first(
      std::min(usable.size(), static_cast<size_t>(RanksOf(needs))));
  return *std::min_element(used.begin(), used.end(),
                           [&](const auto& a, const auto& b) {
                             return FreeBytes(a, needs) < FreeBytes(b, needs);
                           });
}

absl::Status CheckMemory(const Gpus& usable, const DeviceNeeds& needs) {
  const auto gpus = static_cast<int64_t>(usable.size());
  const int64_t sharers = (RanksOf(needs) + gpus - 1) / gpus;
  const CudaDeviceInfo& gpu = TightestOf(usable, needs);
  const int64_t total = gpu.properties.total_bytes;
  const int64_t free = FreeBytes(gpu, needs);
  if (needs.bytes * sharers <= free) return absl::OkStatus();
  const std::string who = sharers == 1
                              ? "a rank needs "
                              : absl::StrCat(sharers, " ranks of a GPU need ");
  return absl::FailedPreconditionError(absl::StrCat(
      who, ByteSize(needs.bytes * sharers).ToString(),
      " of device memory, and ", GpuName(gpu), " has ",
      ByteSize(total).ToString(),
      free < total ? absl::StrCat(", of which ", ByteSize(free).ToString(),
                                  " are free: other processes use the rest")
                   : "",
      "; --device=cuda --dry_run lists the flags that help"));
}

absl::Status CheckGpus(std::string_view device,
                       const absl::StatusOr<Gpus>& found,
                       const DeviceNeeds& needs) {
  TESSERA_RETURN_IF_ERROR(found.status());
  TESSERA_ASSIGN_OR_RETURN(const Gpus usable, UsableOf(device, *found));
  TESSERA_RETURN_IF_ERROR(needs.possible);
  TESSERA_RETURN_IF_ERROR(CheckCount(device, usable, needs));
  return device.empty() ? CheckMemory(usable, needs) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view device,
                                          const absl::StatusOr<Gpus>& found,
                                          const DeviceNeeds& needs) {
  if (device == "cpu" || device == "emulated") {
    return DeviceChoice{std::string(device), ""};
  }
  const absl::Status status = CheckGpus(device, found, needs);
  if (!device.empty()) {
    TESSERA_RETURN_IF_ERROR(status,
                            Annotate(_, absl::StrCat("--device=", device)));
    return DeviceChoice{std::string(device), ""};
  }
  if (status.ok()) return DeviceChoice{"cuda", ""};
  // Without a GPU or without CUDA in the program, no note is needed.
  if (absl::IsNotFound(status) || absl::IsUnimplemented(status)) {
    return DeviceChoice{"cpu", ""};
  }
  return DeviceChoice{
      "cpu", absl::StrCat("computes on the CPU, as with --device=cpu: ",
                          status.message())};
}

absl::StatusOr<DeviceRoom> FindDeviceRoom(std::string_view device,
                                          const absl::StatusOr<Gpus>& found,
                                          const DeviceNeeds& needs) {
  TESSERA_RETURN_IF_ERROR(found.status());
  TESSERA_ASSIGN_OR_RETURN(const Gpus usable, UsableOf(device, *found));
  const CudaDeviceInfo& gpu = TightestOf(usable, needs);
  return DeviceRoom{.bytes = FreeBytes(gpu, needs),
                    .limit = GpuName(gpu),
                    .gpus = static_cast<int64_t>(usable.size())};
}

absl::StatusOr<int> GpuOfRank(std::string_view device, const Gpus& found,
                              int64_t local_rank, bool shares_gpus) {
  TESSERA_ASSIGN_OR_RETURN(const Gpus usable, UsableOf(device, found));
  const auto gpus = static_cast<int64_t>(usable.size());
  if (gpus == 1 || shares_gpus) local_rank %= gpus;
  if (local_rank >= 0 && local_rank < gpus) {
    return usable[static_cast<size_t>(local_rank)].ordinal;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", local_rank, " of this machine has no GPU: ", gpus,
                   IsList(device) ? " are chosen" : " are usable"));
}

}  // namespace tessera::train
