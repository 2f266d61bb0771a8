#include "tools/comm_bench/traffic_meter.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::tools {

namespace {

using collectives::Blocks;
using collectives::OpKind;
using collectives::StoreMode;

constexpr int64_t kElement = sizeof(float);

// Reads elements [first, first + count) of every input, adds them and writes
// them to `outputs`.
void Fold(const TrafficBuffers& buffers, const std::vector<std::byte*>& outputs,
          int64_t first, int64_t count, StoreMode stores) {
  std::vector<const void*> sources;
  for (const std::byte* input : buffers.inputs) {
    sources.push_back(input + first * kElement);
  }
  std::vector<void*> targets;
  for (std::byte* output : outputs) {
    targets.push_back(output + first * kElement);
  }
  collectives::Combine({.dtype = DType::kF32, .stores = stores}, sources,
                       targets, count);
}

}  // namespace

void MoveTraffic(const TrafficBuffers& buffers, int64_t rank, OpKind kind,
                 int64_t bytes, bool streamed) {
  const StoreMode stores =
      streamed ? StoreMode::kStreaming : StoreMode::kCached;
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  const Blocks parts = Blocks::Balanced(world, bytes / kElement);
  const int64_t block = bytes / world;
  std::byte* const output = buffers.outputs[static_cast<size_t>(rank)];
  const std::byte* const input = buffers.inputs[static_cast<size_t>(rank)];
  const auto fold = [&](const std::vector<std::byte*>& outputs) {
    Fold(buffers, outputs, parts.offset(rank), parts.count(rank), stores);
  };
  switch (kind) {
    case OpKind::kAllReduce:
      return fold(buffers.outputs);
    case OpKind::kReduce:
      return fold({buffers.outputs[0]});
    case OpKind::kReduceScatter:
      return fold({output});
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      for (int64_t step = 0; step < world; ++step) {
        const int64_t from = (rank + step) % world;
        const int64_t own = kind == OpKind::kAllToAll ? rank * block : 0;
        CopyBytes(output + from * block,
                  buffers.inputs[static_cast<size_t>(from)] + own, block,
                  stores);
      }
      return;
    case OpKind::kBroadcast:
      return CopyBytes(output, buffers.inputs[0], bytes, stores);
    case OpKind::kGather:
      return CopyBytes(buffers.outputs[0] + rank * block, input, block, stores);
    case OpKind::kScatter:
      return CopyBytes(output, buffers.inputs[0] + rank * block, block, stores);
    default:
      return;
  }
}

namespace {

constexpr int64_t kIterations = 15;
constexpr int64_t kPage = 4096;
// Streaming stores are tried from this size on.
constexpr int64_t kStreamedBytes = 1 << 20;
// Short moves are repeated, as the benchmark repeats short operations.
constexpr double kTimedSeconds = 40e-6;
constexpr double kMostRepeats = 64;

using Times = std::array<double, kIterations>;

int64_t RoomOf(int64_t max_bytes) {
  return (max_bytes + kPage - 1) / kPage * kPage + kPage;
}

// CPU time of this thread, without others on the same processor.
double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

// The number of ranks that share a processor.
double RanksPerProcessor(size_t world) {
  return std::max(1.0, static_cast<double>(world) /
                           static_cast<double>(AvailableProcessors()));
}

// Writes through the caches, like a kernel that computes the buffer; memset of
// large buffers bypasses them.
void FillByStores(std::byte* memory, int64_t bytes) {
  auto* const values = reinterpret_cast<float*>(memory);
  for (int64_t i = 0; i < bytes / kElement; ++i) {
    values[i] = static_cast<float>(i % 1024);
  }
}

// One move by all threads.
struct Move {
  const TrafficBuffers& buffers;
  OpKind kind;
  int64_t bytes;
  bool streamed;
  std::barrier<> barrier;

  size_t world() const { return buffers.inputs.size(); }

  // Processor time of one of `repeats` moves of `rank`.
  double Time(size_t rank, int64_t repeats) {
    std::memset(buffers.outputs[rank], 0xa5, static_cast<size_t>(bytes));
    FillByStores(buffers.inputs[rank], bytes);
    barrier.arrive_and_wait();
    const double begin = ProcessorSeconds();
    for (int64_t i = 0; i < repeats; ++i) {
      MoveTraffic(buffers, static_cast<int64_t>(rank), kind, bytes, streamed);
    }
    const double end = ProcessorSeconds();
    barrier.arrive_and_wait();
    return std::max(end - begin, 1e-9) / static_cast<double>(repeats);
  }

  // The same in each iteration, on the rank's share of the processors.
  Times TimeAll(size_t rank) {
    // Without permission the thread stays unbound.
    static_cast<void>(BindThisThread(
        ShareOfProcessors(AllowedProcessors(), static_cast<int64_t>(rank),
                          static_cast<int64_t>(world()))));
    int64_t repeats = 1;
    for (int guess = 0; guess < 3; ++guess) {
      const double once = Time(rank, repeats) * RanksPerProcessor(world());
      repeats = static_cast<int64_t>(
          std::clamp(kTimedSeconds / once, 1.0, kMostRepeats));
    }
    Times times = {};
    for (double& time : times) time = Time(rank, repeats);
    return times;
  }
};

double MeasureWith(const TrafficBuffers& buffers, OpKind kind, int64_t bytes,
                   bool streamed) {
  const size_t world = buffers.inputs.size();
  Move move = {buffers, kind, bytes, streamed,
               std::barrier<>(static_cast<ptrdiff_t>(world))};
  std::vector<Times> by_rank(world);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { by_rank[rank] = move.TimeAll(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  // Ranks that share a processor take turns.
  const double share = RanksPerProcessor(world) / static_cast<double>(world);
  Times slowest = {};
  for (size_t i = 0; i < slowest.size(); ++i) {
    double total = 0;
    for (const Times& times : by_rank) {
      slowest[i] = std::max(slowest[i], times[i]);
      total += times[i];
    }
    slowest[i] = std::max(slowest[i], total * share);
  }
  std::nth_element(slowest.begin(), slowest.begin() + kIterations / 2,
                   slowest.end());
  return slowest[kIterations / 2];
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrafficMeter>> TrafficMeter::Create(
    int64_t world, int64_t max_bytes) {
  const int64_t room = RoomOf(max_bytes);
  const int64_t needed = 2 * world * room;
  const int64_t free = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  if (needed > free / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "measuring the bound takes ", needed,
        " bytes of shared memory, more than half of the ", free, " free"));
  }
  // Pages like those of engines that share memory between processes.
  const auto bytes = static_cast<size_t>(needed);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "cannot map shared memory");
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // Best effort.
  std::unique_ptr<TrafficMeter> meter(
      new TrafficMeter(max_bytes, static_cast<std::byte*>(memory), bytes));
  for (int64_t r = 0; r < world; ++r) {
    meter->buffers_.inputs.push_back(meter->memory_ + 2 * r * room);
    meter->buffers_.outputs.push_back(meter->memory_ + (2 * r + 1) * room);
  }
  return meter;
}

TrafficMeter::~TrafficMeter() { munmap(memory_, memory_bytes_); }

absl::StatusOr<double> TrafficMeter::Measure(OpKind kind, int64_t bytes) {
  if (kind == OpKind::kBarrier || bytes < 1 || bytes > max_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("no bound for ", OpKindName(kind), " of ", bytes,
                     " bytes; at most ", max_bytes_));
  }
  double seconds = MeasureWith(buffers_, kind, bytes, /*streamed=*/false);
  if (bytes >= kStreamedBytes) {
    seconds = std::min(seconds,
                       MeasureWith(buffers_, kind, bytes, /*streamed=*/true));
  }
  return seconds;
}

}  // namespace tessera::tools
