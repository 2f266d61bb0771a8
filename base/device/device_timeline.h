// DeviceTimeline: models the time that work on a device would take.
//
//   EmulatedDevice::Create({.timing = DeviceTiming{}});   // emulated_device.h
//   ... enqueue the work of a step ...
//   const SimulatedTime time = device->simulated_time();
//
// A discrete-event simulation in the order of the calls: an operation starts
// when the work that its queue has waited for is done and its resource is free.
// Host copies use one link for each direction; functions of different queues
// run concurrently. The host takes time only for waits and for what
// DeviceTiming::host_seconds adds.
#ifndef TESSERA_BASE_DEVICE_DEVICE_TIMELINE_H_
#define TESSERA_BASE_DEVICE_DEVICE_TIMELINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// The defaults describe an H200 with PCIe 5 x16.
struct DeviceTiming {
  double upload_bytes_per_second = 50e9;    // Host to device.
  double download_bytes_per_second = 50e9;  // Concurrent with uploads.
  double memory_bytes_per_second = 3.7e12;  // Read and written by functions.
  double launch_seconds = 3e-6;             // Minimum of each operation.
  // The time of a function by its name and the bytes that it accesses. If null,
  // it depends on the bytes alone.
  std::function<double(std::string_view name, size_t bytes)> work_seconds = {};
  // The host's time for a Device::HostAccess with this name; none if null.
  std::function<double(std::string_view name, size_t bytes)> host_seconds = {};
};

struct SimulatedTime {
  double elapsed = 0;  // Seconds, until all work is done.
  // The busy time of each resource in seconds.
  double work = 0;
  double uploads = 0;
  double downloads = 0;
  double host = 0;

  // A lower bound for every order of the work.
  double bound() const { return std::max({work, uploads, downloads, host}); }
};

class DeviceTimeline {
 public:
  enum class Kind { kWork, kUpload, kDownload };

  explicit DeviceTimeline(DeviceTiming timing) : timing_(std::move(timing)) {}

  // Adds the next operation of `queue`. `after[q]` is the number of the last
  // operation of queue q that precedes it; numbers begin at 1.
  void Add(size_t queue, std::span<const uint64_t> after, Kind kind,
           std::string_view name, size_t bytes);
  // Makes the host wait for the operations of each queue up to these numbers.
  void HostWaits(std::span<const uint64_t> numbers);
  // Adds host work on `bytes` bytes.
  void HostWorks(std::string_view name, size_t bytes);
  // True if the operations up to these numbers are done at the host's current
  // time.
  bool HaveHappened(std::span<const uint64_t> numbers) const {
    return EndOf(numbers) <= host_;
  }

  SimulatedTime time() const { return time_; }

 private:
  double EndOf(std::span<const uint64_t> numbers) const;
  double SecondsOf(Kind kind, std::string_view name, size_t bytes) const;

  const DeviceTiming timing_;
  std::vector<std::vector<double>> ends_;  // By queue and number.
  double host_ = 0;
  double upload_free_ = 0;
  double download_free_ = 0;
  SimulatedTime time_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_DEVICE_TIMELINE_H_
