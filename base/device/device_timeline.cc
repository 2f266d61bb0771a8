#include "base/device/device_timeline.h"

namespace tessera {

double DeviceTimeline::EndOf(std::span<const uint64_t> numbers) const {
  double end = 0;
  for (size_t i = 0; i < numbers.size() && i < ends_.size(); ++i) {
    if (numbers[i] > 0) end = std::max(end, ends_[i][numbers[i] - 1]);
  }
  return end;
}

double DeviceTimeline::SecondsOf(Kind kind, std::string_view name,
                                 size_t bytes) const {
  const auto size = static_cast<double>(bytes);
  double seconds = 0;
  switch (kind) {
    case Kind::kUpload:
      seconds = size / timing_.upload_bytes_per_second;
      break;
    case Kind::kDownload:
      seconds = size / timing_.download_bytes_per_second;
      break;
    case Kind::kWork:
      seconds = timing_.work_seconds != nullptr
                    ? timing_.work_seconds(name, bytes)
                    : size / timing_.memory_bytes_per_second;
      break;
  }
  return std::max(seconds, timing_.launch_seconds);
}

void DeviceTimeline::Add(size_t queue, std::span<const uint64_t> after,
                         Kind kind, std::string_view name, size_t bytes) {
  if (ends_.size() <= queue) ends_.resize(queue + 1);
  std::vector<double>& own = ends_[queue];
  double start = std::max(host_, EndOf(after));
  if (!own.empty()) start = std::max(start, own.back());
  const double seconds = SecondsOf(kind, name, bytes);
  if (kind == Kind::kUpload) {
    start = std::max(start, upload_free_);
    upload_free_ = start + seconds;
    time_.uploads += seconds;
  } else if (kind == Kind::kDownload) {
    start = std::max(start, download_free_);
    download_free_ = start + seconds;
    time_.downloads += seconds;
  } else {
    time_.work += seconds;
  }
  own.push_back(start + seconds);
  time_.elapsed = std::max(time_.elapsed, own.back());
}

void DeviceTimeline::HostWaits(std::span<const uint64_t> numbers) {
  host_ = std::max(host_, EndOf(numbers));
}

void DeviceTimeline::HostWorks(std::string_view name, size_t bytes) {
  if (timing_.host_seconds == nullptr) return;
  const double seconds = timing_.host_seconds(name, bytes);
  host_ += seconds;
  time_.host += seconds;
  time_.elapsed = std::max(time_.elapsed, host_);
}

}  // namespace tessera
