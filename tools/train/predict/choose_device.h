// Selects the device of the ranks from --device, the GPUs of this machine and
// the memory that a rank needs.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const DeviceChoice choice,
//       ChooseDevice(settings.device, FindCudaDevices(), {.ranks_here = 2}));
//   if (!choice.note.empty()) std::cerr << choice.note << std::endl;
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_DEVICE_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_DEVICE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/cuda_device.h"

namespace tessera::train {

// The needs of a run on this machine.
struct DeviceNeeds {
  int64_t ranks_here = 1;
  // Each rank sees its own GPU as GPU 0 (CUDA_VISIBLE_DEVICES).
  bool has_own_gpu = false;
  // Ranks are threads of one process, and several may share a GPU.
  bool shares_gpus = false;
  // Device memory of the rank that needs most, used if --device is empty; 0 if
  // it was not predicted.
  int64_t bytes = 0;
  // The free bytes of each GPU, by PCI bus id in lower case. All memory of a
  // GPU that is not in the map is free.
  std::map<std::string, int64_t> free_bytes = {};
  // The reason why no GPU can execute the run, with the remedy; OK if GPUs can.
  absl::Status possible = absl::OkStatus();
};

// The free memory of the GPUs that a run uses.
struct DeviceRoom {
  int64_t bytes = 0;       // On the GPU with the least free memory.
  std::string limit = "";  // That GPU: "GPU 0 (NVIDIA H100)".
  int64_t gpus = 1;
};

struct DeviceChoice {
  // A value of --device; not empty.
  std::string device;
  // One line that explains why GPUs are not used although there are some.
  std::string note;
};

// `device` is a valid value of --device. If it is empty, selects GPUs if enough
// of them are usable and have sufficient free memory; otherwise the processor,
// with a note if there are GPUs.
//
// With "cuda" or a list such as "cuda:0,2", returns the errors of `found` and
// `needs`, and FailedPrecondition, in one line with the remedy, if no GPU is
// usable or there are fewer GPUs than ranks. The caller checks their memory
// (FindDeviceRoom).
absl::StatusOr<DeviceChoice> ChooseDevice(
    std::string_view device,
    const absl::StatusOr<std::vector<CudaDeviceInfo>>& found,
    const DeviceNeeds& needs);

// `device` is "cuda", a list of GPUs, or empty. Returns the errors of `found`;
// FailedPrecondition if no GPU is usable.
absl::StatusOr<DeviceRoom> FindDeviceRoom(
    std::string_view device,
    const absl::StatusOr<std::vector<CudaDeviceInfo>>& found,
    const DeviceNeeds& needs);

// The GPU of the `local_rank`th rank of this machine: the `local_rank`th GPU of
// the list in `device`, or of the usable GPUs for "cuda". If there is only one
// GPU, or ranks share GPUs, they are assigned round-robin.
absl::StatusOr<int> GpuOfRank(std::string_view device,
                              const std::vector<CudaDeviceInfo>& found,
                              int64_t local_rank, bool shares_gpus = false);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_CHOOSE_DEVICE_H_
