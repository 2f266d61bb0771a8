// ForgetfulDevice: wraps an emulated device and skips some waits, to test that
// they are needed and that the device reports each missing one.
//
//   // The compute queue does not wait for gathers of weights:
//   ForgetfulDevice device(emulated, {.file = "zero3/state/weight_gather.cc",
//                                     .queue = "compute"});
//
// A Wait or Record is skipped if its source location is in `file` and the name
// of its queue contains `queue`. An event of a skipped Record has happened from
// the start.
#ifndef TESSERA_BASE_DEVICE_TESTING_FORGETFUL_DEVICE_H_
#define TESSERA_BASE_DEVICE_TESTING_FORGETFUL_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/device/device.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera {

struct ForgottenWaits {
  std::string file;  // The file name of a SourcePlace, or its suffix.
  std::string queue = "";

  bool Matches(std::string_view name, const SourcePlace& place) const {
    return absl::EndsWith(place.file_name(), file) &&
           absl::StrContains(name, queue);
  }
};

class ForgetfulDevice final : public Device {
 public:
  ForgetfulDevice(std::shared_ptr<Device> device, ForgottenWaits forgotten)
      : device_(std::move(device)), forgotten_(std::move(forgotten)) {}

  // The number of skipped calls.
  int64_t times() const { return times_; }

  std::string_view name() const override { return device_->name(); }
  std::shared_ptr<MemoryResource> memory() const override {
    return device_->memory();
  }
  std::shared_ptr<MemoryResource> staging_memory() const override {
    return device_->staging_memory();
  }
  absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Queue> queue,
                             device_->CreateQueue(name));
    return std::make_unique<ForgetfulQueue>(*this, std::move(queue));
  }
  absl::Status Synchronize(SourcePlace place) override {
    return device_->Synchronize(place);
  }
  absl::Status HostAccess(const MemoryAccess& access, std::string_view what,
                          SourcePlace place) override {
    return device_->HostAccess(access, what, place);
  }
  DeviceCounts counts() const override { return device_->counts(); }

 private:
  class ForgetfulQueue final : public Queue {
   public:
    ForgetfulQueue(ForgetfulDevice& device, std::unique_ptr<Queue> queue)
        : device_(device), queue_(std::move(queue)) {}

    std::string_view name() const override { return queue_->name(); }
    Device& device() const override { return device_; }
    bool is_immediate() const override { return queue_->is_immediate(); }
    absl::Status Copy(std::span<const std::byte> source,
                      std::span<std::byte> target, SourcePlace place) override {
      return queue_->Copy(source, target, place);
    }
    absl::Status Fill(std::byte value, std::span<std::byte> target,
                      SourcePlace place) override {
      return queue_->Fill(value, target, place);
    }
    absl::Status Launch(HostFunction function, SourcePlace place) override {
      return queue_->Launch(std::move(function), place);
    }
    absl::StatusOr<Event> Record(SourcePlace place) override {
      return Forgets(place) ? Event() : queue_->Record(place);
    }
    absl::Status Wait(const Event& event, SourcePlace place) override {
      return Forgets(place) ? absl::OkStatus() : queue_->Wait(event, place);
    }
    absl::Status Synchronize(SourcePlace place) override {
      return queue_->Synchronize(place);
    }
    absl::Status BeginCapture(SourcePlace place) override {
      return queue_->BeginCapture(place);
    }
    absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(
        SourcePlace place) override {
      return queue_->EndCapture(place);
    }
    absl::Status Replay(DeviceGraph& graph, SourcePlace place) override {
      return queue_->Replay(graph, place);
    }

   private:
    bool Forgets(const SourcePlace& place) const {
      if (!device_.forgotten_.Matches(name(), place)) return false;
      ++device_.times_;
      return true;
    }

    ForgetfulDevice& device_;
    const std::unique_ptr<Queue> queue_;
  };

  const std::shared_ptr<Device> device_;
  const ForgottenWaits forgotten_;
  std::atomic<int64_t> times_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TESTING_FORGETFUL_DEVICE_H_
