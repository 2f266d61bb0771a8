// DeviceTimeline: the time that work on a device would take, from a model.
//
//   EmulatedDevice::Create({.timing = DeviceTiming{}});   // emulated_device.h
//   ... enqueue the work of a step ...
//   const SimulatedTime time = device->simulated_time();
//
// A discrete-event simulation in the order of the calls: an operation starts
// when the work that its queue has waited for is done, and when its resource is
// free. Copies from and to the host have a link for each direction; functions
// of different queues run side by side. The host takes no time except where it
// waits, and what DeviceTiming::host_seconds says.
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

// The defaults are those of an H200 with PCIe 5 x16.
struct DeviceTiming {
  double upload_bytes_per_second = 50e9;    // From the host to the device.
  double download_bytes_per_second = 50e9;  // At the same time.
  double memory_bytes_per_second = 3.7e12;  // Read and written by functions.
  double launch_seconds = 3e-6;             // The least of each operation.
  // The time of a function by its name and the bytes that it accesses. Null:
  // by the bytes alone.
  std::function<double(std::string_view name, size_t bytes)> work_seconds = {};
  // The time of the host at a Device::HostAccess of this name. Null: none.
  std::function<double(std::string_view name, size_t bytes)> host_seconds = {};
};

struct SimulatedTime {
  double elapsed = 0;  // Seconds, until all work is done.
  // How long each was busy.
  double work = 0;
  double uploads = 0;
  double downloads = 0;
  double host = 0;

  // No order of the work is faster.
  double bound() const { return std::max({work, uploads, downloads, host}); }
};

class DeviceTimeline {
 public:
  enum class Kind { kWork, kUpload, kDownload };

  explicit DeviceTimeline(DeviceTiming timing) : timing_(std::move(timing)) {}

  // The next operation of `queue`. `after` holds, by queue, the number of the
  // last operation that comes before it; numbers begin at 1.
  void Add(size_t queue, std::span<const uint64_t> after, Kind kind,
           std::string_view name, size_t bytes);
  // The host waits for the operations up to these numbers, by queue.
  void HostWaits(std::span<const uint64_t> numbers);
  // The host works with `bytes` bytes.
  void HostWorks(std::string_view name, size_t bytes);
  // True if the operations up to these numbers are done at the host's time.
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
