// EmulatedDevice: a device without hardware that finds missing waits and
// invalid memory accesses of a program before it runs on a GPU.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, EmulatedDevice::Create({.seed = 7}));
//   TESSERA_ASSIGN_OR_RETURN(auto queue, device->CreateQueue("compute"));
//
// - The host cannot access its memory: dereferencing a pointer ends the process
//   with SIGSEGV. The device accesses the same bytes at another address.
// - A thread of the device executes work late, when the host waits for it or
//   has enqueued nothing for some time. The seed determines which queue runs
//   next among those that events allow. (Orders are reproducible
//   except for the varying time of messages.)
// - A missing wait is found when work is enqueued (access_checker.h), in any
//   order of execution: the call returns Internal with both operations, their
//   queues and their source locations.
// - So is a function that accesses host memory which is not from
//   staging_memory(), because a GPU's kernels cannot. Copies can.
//
// New memory is filled with bytes 0xFF, which is NaN in every floating-point
// type.
#ifndef TESSERA_BASE_DEVICE_EMULATED_DEVICE_H_
#define TESSERA_BASE_DEVICE_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/device_timeline.h"
#include "base/tensor/memory.h"

namespace tessera {

struct EmulatedDeviceOptions {
  // Reserved address space; physical memory is used only when it is written.
  size_t memory_bytes = size_t{16} << 30;
  uint64_t seed = 1;
  // Allocated at creation, in one piece (arena.h). If 0, each request is a
  // separate allocation, whose bounds and lifetime are checked.
  size_t arena_bytes = 0;
  // The timing model of simulated_time(); without one, times are not recorded.
  std::optional<DeviceTiming> timing = {};
};

class EmulatedDeviceCore;

class EmulatedDevice final : public Device {
 public:
  // ResourceExhausted if there is too little address space; Unavailable if the
  // system has no memory files (memfd_create).
  static absl::StatusOr<std::shared_ptr<EmulatedDevice>> Create(
      const EmulatedDeviceOptions& options = {});

  // Waits for running work. All queues must be destroyed first.
  ~EmulatedDevice() override;

  std::string_view name() const override { return "emulated"; }
  std::shared_ptr<MemoryResource> memory() const override { return memory_; }
  std::shared_ptr<MemoryResource> staging_memory() const override;
  absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) override;
  absl::Status Synchronize(SourcePlace place = SourcePlace::current()) override;
  absl::Status HostAccess(const MemoryAccess& access, std::string_view what,
                          SourcePlace place = SourcePlace::current()) override;
  DeviceCounts counts() const override;

  // The modelled time of the work enqueued so far; zeros without
  // options.timing.
  SimulatedTime simulated_time() const;

  // Translates device addresses into host addresses, as for host functions.
  DeviceAddresses addresses() const;

 private:
  explicit EmulatedDevice(std::shared_ptr<EmulatedDeviceCore> core);

  absl::Status TakeMemory(size_t arena_bytes);

  // Shared with memory resources and events, which may outlive the device.
  const std::shared_ptr<EmulatedDeviceCore> core_;
  std::shared_ptr<MemoryResource> memory_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_EMULATED_DEVICE_H_
