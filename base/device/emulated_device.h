// EmulatedDevice: a device without hardware, which shows whether a program is
// ready for one.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, EmulatedDevice::Create({.seed = 7}));
//   TESSERA_ASSIGN_OR_RETURN(auto queue, device->CreateQueue("compute"));
//
// - The host cannot touch its memory: following a pointer ends the process with
//   SIGSEGV. The device finds the same bytes at another address.
// - Its work is done late, by a thread of its own: when the host waits for it,
//   or has enqueued nothing for some time. Which queue is next is random within
//   the order that events give, from the seed. (Messages take as long as they
//   take: orders are reproducible up to these.)
// - A missing wait is found when work is enqueued (access_checker.h), in
//   whatever order it would have run: the call returns Internal with both
//   operations, their queues and their places in the source.
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
  // Address space; memory of the machine is used as it is written.
  size_t memory_bytes = size_t{16} << 30;
  uint64_t seed = 1;
  // Taken at the start, in one allocation (arena.h); 0: each request is an
  // allocation of its own, whose bounds and lifetime are checked.
  size_t arena_bytes = 0;
  // How long work takes, for simulated_time(). Nothing: times are not kept.
  std::optional<DeviceTiming> timing = {};
};

class EmulatedDeviceCore;

class EmulatedDevice final : public Device {
 public:
  // ResourceExhausted if there is too little address space; Unavailable if the
  // system has no memory files (memfd_create).
  static absl::StatusOr<std::shared_ptr<EmulatedDevice>> Create(
      const EmulatedDeviceOptions& options = {});

  // Waits for work that is under way. Queues are destroyed before.
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

  // The time of the work enqueued so far, by options.timing; zeros without.
  SimulatedTime simulated_time() const;

  // Translates the device's addresses for the host, as for its functions.
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
