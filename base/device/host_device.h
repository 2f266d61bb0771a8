// HostDevice: the processor as a device. Work is done by the calling thread
// when it is enqueued, so that every event has happened when it is recorded.
//
//   HostDevice cpu;
//   TESSERA_ASSIGN_OR_RETURN(auto queue, cpu.CreateQueue("compute"));
//
// CountingDevice: a device that does no work, for dry runs. Its memory counts
// what is allocated and has no contents.
#ifndef TESSERA_BASE_DEVICE_HOST_DEVICE_H_
#define TESSERA_BASE_DEVICE_HOST_DEVICE_H_

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"

namespace tessera {

class HostDevice final : public Device {
 public:
  explicit HostDevice(std::shared_ptr<MemoryResource> memory = HostMemory())
      : memory_(std::move(memory)) {}

  std::string_view name() const override { return "cpu"; }
  std::shared_ptr<MemoryResource> memory() const override { return memory_; }
  std::shared_ptr<MemoryResource> staging_memory() const override {
    return memory_;
  }
  absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) override;
  absl::Status Synchronize(SourcePlace) override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<MemoryResource> memory_;
};

// A queue of a HostDevice for the whole process. Thread-safe: it has no state.
Queue& HostQueue();

class CountingDevice final : public Device {
 public:
  // `memory` is the device's, `staging` the host's; mostly CountingMemory. With
  // `is_immediate` false its queues are not immediate, though every event has
  // happened: programs then allocate what they need on a GPU.
  CountingDevice(std::shared_ptr<MemoryResource> memory,
                 std::shared_ptr<MemoryResource> staging,
                 bool is_immediate = true)
      : memory_(std::move(memory)),
        staging_(std::move(staging)),
        is_immediate_(is_immediate) {}

  std::string_view name() const override { return "counting"; }
  std::shared_ptr<MemoryResource> memory() const override { return memory_; }
  std::shared_ptr<MemoryResource> staging_memory() const override {
    return staging_;
  }
  // Its work is dropped: functions are not called.
  absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) override;
  absl::Status Synchronize(SourcePlace) override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<MemoryResource> memory_;
  const std::shared_ptr<MemoryResource> staging_;
  const bool is_immediate_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_HOST_DEVICE_H_
