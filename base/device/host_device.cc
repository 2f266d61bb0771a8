#include "base/device/host_device.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckSizes(size_t source, size_t target) {
  if (source == target) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("copy of ", source, " bytes to ", target,
                   " bytes; give two ranges of one size"));
}

// With kDrops, work is dropped because the memory has no contents; the queue
// may then report that it is not immediate.
template <bool kDrops>
class ImmediateQueue final : public Queue {
 public:
  ImmediateQueue(Device& device, std::string_view name,
                 bool is_immediate = true)
      : device_(device), name_(name), is_immediate_(is_immediate) {}

  std::string_view name() const override { return name_; }
  Device& device() const override { return device_; }
  bool is_immediate() const override { return is_immediate_; }

  absl::Status Copy(std::span<const std::byte> source,
                    std::span<std::byte> target, SourcePlace) override {
    TESSERA_RETURN_IF_ERROR(CheckSizes(source.size(), target.size()));
    if (!kDrops && !source.empty() && source.data() != target.data()) {
      std::memmove(target.data(), source.data(), source.size());
    }
    return absl::OkStatus();
  }
  absl::Status Fill(std::byte value, std::span<std::byte> target,
                    SourcePlace) override {
    if (!kDrops && !target.empty()) {
      std::memset(target.data(), std::to_integer<int>(value), target.size());
    }
    return absl::OkStatus();
  }
  absl::Status Launch(HostFunction function, SourcePlace) override {
    if (kDrops) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const Event done, function.run(DeviceAddresses()));
    return done.Wait();
  }
  absl::StatusOr<Event> Record(SourcePlace) override { return Event(); }
  absl::Status Wait(const Event& event, SourcePlace) override {
    return event.Wait();
  }
  absl::Status Synchronize(SourcePlace) override { return absl::OkStatus(); }

 private:
  Device& device_;
  const std::string name_;
  const bool is_immediate_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Queue>> HostDevice::CreateQueue(
    std::string_view name) {
  return std::make_unique<ImmediateQueue<false>>(*this, name);
}

absl::StatusOr<std::unique_ptr<Queue>> CountingDevice::CreateQueue(
    std::string_view name) {
  return std::make_unique<ImmediateQueue<true>>(*this, name, is_immediate_);
}

Queue& HostQueue() {
  static HostDevice& device = *new HostDevice();
  static Queue& queue = *new ImmediateQueue<false>(device, "host");
  return queue;
}

}  // namespace tessera
