// Devices without an accelerator: HostDevice executes work on the CPU, and
// CountingDevice drops it.
//
//   HostDevice cpu;
//   TESSERA_ASSIGN_OR_RETURN(auto queue, cpu.CreateQueue("compute"));
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

// The CPU as a device. The calling thread executes work when it is enqueued, so
// every event has happened when it is recorded.
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

// The process-wide queue of a HostDevice. Thread-safe, because it has no state.
Queue& HostQueue();

// A device that does no work, for dry runs. Its memory counts allocations and
// has no contents.
class CountingDevice final : public Device {
 public:
  // `memory` serves as device memory and `staging` as host memory; both are
  // usually CountingMemory. If `is_immediate` is false, queues report that they
  // are not immediate, although every event has happened; programs then
  // allocate what they would need on a GPU.
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
  // The queue drops its work and calls no functions.
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
