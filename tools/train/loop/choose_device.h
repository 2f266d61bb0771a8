// ChooseDevice: which device the ranks compute on, from --device, the GPUs of
// this machine and the memory that a rank needs.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const DeviceChoice choice,
//       ChooseDevice(settings.device, FindCudaDevices(), {.ranks_here = 2}));
//   if (!choice.note.empty()) std::cerr << choice.note << std::endl;
#ifndef TESSERA_TOOLS_TRAIN_LOOP_CHOOSE_DEVICE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_CHOOSE_DEVICE_H_

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
  // Each rank sees a GPU of its own as GPU 0 (CUDA_VISIBLE_DEVICES).
  bool has_own_gpu = false;
  // Ranks are threads of a process, of which several may have one GPU.
  bool shares_gpus = false;
  // Device memory of the rank that needs most, for an empty --device; 0: not
  // predicted.
  int64_t bytes = 0;
  // Bytes of each GPU that no process uses, by PCI bus id in lower case. Of
  // GPUs that are not here, all.
  std::map<std::string, int64_t> free_bytes = {};
  // Why no GPU can execute the run, with what to do about it.
  absl::Status possible = absl::OkStatus();
};

// The free memory of the GPUs that a run uses.
struct DeviceRoom {
  int64_t bytes = 0;       // On the GPU with least.
  std::string limit = "";  // "GPU 0 (NVIDIA H100)".
  int64_t gpus = 1;
};

struct DeviceChoice {
  // A value of --device; not empty.
  std::string device;
  // One line if GPUs are not used although there are some.
  std::string note;
};

// `device` is a valid --device. With an empty one, GPUs are used if there are
// enough that are usable and have the free memory; otherwise the processor,
// with a note if there are GPUs. Without GPUs there is no note.
//
// With "cuda" or a list, "cuda:0,2", FailedPrecondition in one line, with what
// to do, if there is no usable GPU or if there are fewer than ranks; the errors
// of `found` and `needs`. Their memory is for the caller to check
// (FindDeviceRoom).
absl::StatusOr<DeviceChoice> ChooseDevice(
    std::string_view device,
    const absl::StatusOr<std::vector<CudaDeviceInfo>>& found,
    const DeviceNeeds& needs);

// `device` is "cuda", a list of GPUs, or empty. The errors of `found`;
// FailedPrecondition if no GPU is usable.
absl::StatusOr<DeviceRoom> FindDeviceRoom(
    std::string_view device,
    const absl::StatusOr<std::vector<CudaDeviceInfo>>& found,
    const DeviceNeeds& needs);

// The GPU of the `local_rank`th rank of this machine: the `local_rank`th of the
// list in `device`, or of the usable ones for "cuda". If there is only one, or
// ranks share GPUs, ranks take them in turn.
absl::StatusOr<int> GpuOfRank(std::string_view device,
                              const std::vector<CudaDeviceInfo>& found,
                              int64_t local_rank, bool shares_gpus = false);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_CHOOSE_DEVICE_H_
