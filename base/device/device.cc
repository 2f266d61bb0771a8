#include "base/device/device.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

template <typename View>
MemoryAccess AccessOf(const View& view, bool writes) {
  if (view.element_count() == 0) return {view.data(), 0, writes};
  const int64_t width = SizeInBytes(view.dtype());
  const int64_t first = view.layout().lowest_offset();
  const int64_t last = view.layout().highest_offset();
  return {view.data() + first * width,
          static_cast<size_t>((last - first + 1) * width), writes};
}

absl::Status CapturesNothing(const Queue& queue) {
  return absl::UnimplementedError(
      absl::StrCat("device ", queue.device().name(), " of queue ", queue.name(),
                   " cannot capture work; enqueue it each time"));
}

}  // namespace

MemoryAccess ReadsFrom(const ConstTensorView& view) {
  return AccessOf(view, false);
}

MemoryAccess WritesTo(const TensorView& view) { return AccessOf(view, true); }

absl::Status Device::HostAccess(const MemoryAccess&, std::string_view,
                                SourcePlace) {
  return absl::OkStatus();
}

absl::Status Queue::BeginCapture(SourcePlace) { return CapturesNothing(*this); }

absl::StatusOr<std::unique_ptr<DeviceGraph>> Queue::EndCapture(SourcePlace) {
  return CapturesNothing(*this);
}

absl::Status Queue::Replay(DeviceGraph&, SourcePlace) {
  return CapturesNothing(*this);
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
    Queue& queue, absl::FunctionRef<absl::Status()> enqueue,
    SourcePlace place) {
  absl::Status status = queue.BeginCapture(place);
  if (!status.ok()) return status;
  status = enqueue();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = queue.EndCapture(place);
  if (!status.ok()) return status;
  return graph;
}

}  // namespace tessera
