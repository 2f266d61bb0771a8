#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "tools/offload_bench/measure.h"

namespace tessera::offload_bench {
namespace {

// One direction: its queue, and memory of both sides.
struct Way {
  std::unique_ptr<Queue> queue;
  Buffer device;
  Buffer host;
  bool is_up = false;

  absl::Status Enqueue(size_t at, size_t block) {
    const size_t size = std::min(block, host.size() - at);
    const std::span<std::byte> near = device.bytes().subspan(at, size);
    const std::span<std::byte> far = host.bytes().subspan(at, size);
    return is_up ? queue->Copy(far, near) : queue->Copy(near, far);
  }
};

absl::StatusOr<Way> MakeWay(Device& device, size_t size, bool is_up) {
  Way way;
  way.is_up = is_up;
  TESSERA_ASSIGN_OR_RETURN(way.queue,
                           device.CreateQueue(is_up ? "up" : "down"));
  TESSERA_ASSIGN_OR_RETURN(way.device, Buffer::Allocate(device.memory(), size));
  TESSERA_ASSIGN_OR_RETURN(way.host,
                           Buffer::Allocate(device.staging_memory(), size));
  return way;
}

// Bytes go up and come down again.
absl::Status CheckCopies(Way& up, Way& down) {
  for (size_t i = 0; i < up.host.size(); ++i) {
    up.host.bytes()[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  }
  std::memset(down.host.data(), 0, down.host.size());
  TESSERA_RETURN_IF_ERROR(up.queue->Copy(up.host.bytes(), down.device.bytes()));
  TESSERA_RETURN_IF_ERROR(up.queue->Synchronize());
  TESSERA_RETURN_IF_ERROR(down.Enqueue(0, down.host.size()));
  TESSERA_RETURN_IF_ERROR(down.queue->Synchronize());
  if (std::ranges::equal(up.host.bytes(), down.host.bytes())) {
    return absl::OkStatus();
  }
  return absl::DataLossError("a copy up and down changed the bytes");
}

// Enqueues all blocks of the directions in turn and waits for the last ones.
absl::Status CopyAll(std::span<Way* const> ways, size_t size, size_t block) {
  for (size_t at = 0; at < size; at += block) {
    for (Way* way : ways) TESSERA_RETURN_IF_ERROR(way->Enqueue(at, block));
  }
  for (Way* way : ways) TESSERA_RETURN_IF_ERROR(way->queue->Synchronize());
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureCopies(Device& device, const OffloadBenchOptions& options,
                           const Sink& sink) {
  const auto size = static_cast<size_t>(options.size);
  TESSERA_ASSIGN_OR_RETURN(Way up, MakeWay(device, size, /*is_up=*/true));
  TESSERA_ASSIGN_OR_RETURN(Way down, MakeWay(device, size, /*is_up=*/false));
  TESSERA_RETURN_IF_ERROR(CheckCopies(up, down));
  const std::pair<std::string, std::vector<Way*>> operations[] = {
      {"up", {&up}}, {"down", {&down}}, {"both", {&up, &down}}};
  const double limit =
      static_cast<double>(size) / options.step.pcie_bytes_per_second;
  for (const int64_t block : options.blocks) {
    for (const auto& [operation, ways] : operations) {
      const Pass pass = Timed([&, &ways = ways] {
        return CopyAll(ways, size, static_cast<size_t>(block));
      });
      TESSERA_RETURN_IF_ERROR(Report(
          {.what = "device",
           .name = std::string(device.name()),
           .operation = operation,
           .block_bytes = block,
           .bytes = options.size * static_cast<int64_t>(ways.size()),
           .limit = "pcie"},
          pass, [&] { return limit; }, options.seconds, sink));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
