// The cost of an operation on the emulated device: enqueuing, checking two
// ranges against the history of 256 buffers, recording an event and waiting for
// it on another queue. The floor is a hand-over between two threads.
#include <memory>
#include <vector>

#include "base/device/emulated_device.h"
#include "benchmark/benchmark.h"

namespace tessera {
namespace {

void BM_OperationWithEvent(benchmark::State& state) {
  const auto device = *EmulatedDevice::Create();
  const std::unique_ptr<Queue> queues[2] = {*device->CreateQueue("a"),
                                            *device->CreateQueue("b")};
  std::vector<Buffer> buffers;
  for (int i = 0; i < 256; ++i) {
    buffers.push_back(*Buffer::Allocate(device->memory(), 1024));
  }
  size_t i = 0;
  for (auto unused : state) {
    Queue& queue = *queues[i % 2];
    const absl::Status status = queue.Launch(
        {.name = "operation",
         .accesses = {ReadsFrom(buffers[i % 256].bytes()),
                      WritesTo(buffers[(i * 7 + 1) % 256].bytes())},
         .run = [](const DeviceAddresses&) { return Event(); }});
    if (!status.ok() || !queues[(i + 1) % 2]->Wait(*queue.Record()).ok()) {
      state.SkipWithError("the device refuses work");
      break;
    }
    if (++i % 4096 == 0 && !device->Synchronize().ok()) {
      state.SkipWithError("the device failed");
    }
  }
  static_cast<void>(device->Synchronize());
}
BENCHMARK(BM_OperationWithEvent);

// Operations on parts of buffers, each of which splits the history.
void BM_OperationsOnParts(benchmark::State& state) {
  const auto device = *EmulatedDevice::Create();
  const std::unique_ptr<Queue> queue = *device->CreateQueue("a");
  Buffer buffer = *Buffer::Allocate(device->memory(), 1 << 20);
  size_t i = 0;
  for (auto unused : state) {
    const size_t at = (i * 7919) % (1 << 19);
    const absl::Status status = queue->Launch(
        {.name = "operation",
         .accesses = {ReadsFrom(buffer.bytes().subspan(at, 1000)),
                      WritesTo(buffer.bytes().subspan(at + (1 << 18), 5000))},
         .run = [](const DeviceAddresses&) { return Event(); }});
    if (!status.ok()) {
      state.SkipWithError("the device refuses work");
      break;
    }
    if (++i % 4096 == 0) static_cast<void>(device->Synchronize());
  }
  static_cast<void>(device->Synchronize());
}
BENCHMARK(BM_OperationsOnParts);

}  // namespace
}  // namespace tessera
