#include "tools/comm_bench/traffic_meter.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::tools {
namespace {

using collectives::Blocks;
using collectives::OpKind;
using collectives::StoreMode;

constexpr int64_t kElement = sizeof(float);
constexpr int64_t kPage = 4096;
constexpr int64_t kIterations = 15;
// Streaming stores are tried from this size on.
constexpr int64_t kStreamedBytes = 1 << 20;
// Short moves are repeated, as the benchmark repeats short operations.
constexpr double kTimedSeconds = 40e-6;
constexpr double kMostRepeats = 64;

using Times = std::array<double, kIterations>;

// CPU time of this thread, without others on the same processor.
double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

// Writes through the caches, like a kernel that computes the buffer; memset of
// large buffers bypasses them.
void FillByStores(std::byte* memory, int64_t bytes) {
  auto* const values = reinterpret_cast<float*>(memory);
  for (int64_t i = 0; i < bytes / kElement; ++i) {
    values[i] = static_cast<float>(i % 1024);
  }
}

// A move by all threads, with which each of them measures itself.
struct Move {
  const TrafficBuffers& buffers;
  const OpKind kind;
  const int64_t bytes;
  const std::vector<int>& processors;
  const int64_t world = static_cast<int64_t>(buffers.inputs.size());
  // Ranks that share a processor take turns.
  const double ranks_per_processor = std::max(
      1.0, static_cast<double>(world) / static_cast<double>(processors.size()));
  std::barrier<> barrier{static_cast<ptrdiff_t>(world)};

  // Processor time of one of `repeats` moves of `rank`.
  double Time(int64_t rank, StoreMode stores, int64_t repeats) {
    const auto r = static_cast<size_t>(rank);
    std::memset(buffers.outputs[r], 0xa5, static_cast<size_t>(bytes));
    FillByStores(buffers.inputs[r], bytes);
    barrier.arrive_and_wait();
    const double begin = ProcessorSeconds();
    for (int64_t i = 0; i < repeats; ++i) {
      MoveTraffic(buffers, rank, kind, bytes, stores);
    }
    const double end = ProcessorSeconds();
    barrier.arrive_and_wait();
    return std::max(end - begin, 1e-9) / static_cast<double>(repeats);
  }

  Times TimeAll(int64_t rank, StoreMode stores) {
    // Without permission the thread stays where it is.
    static_cast<void>(
        BindThisThread(ShareOfProcessors(processors, rank, world)));
    int64_t repeats = 1;
    for (int guess = 0; guess < 3; ++guess) {
      const double once = Time(rank, stores, repeats) * ranks_per_processor;
      repeats = static_cast<int64_t>(
          std::clamp(kTimedSeconds / once, 1.0, kMostRepeats));
    }
    Times times = {};
    for (double& time : times) time = Time(rank, stores, repeats);
    return times;
  }

  // The median over iterations.
  double Measure(StoreMode stores) {
    std::vector<Times> by_rank(static_cast<size_t>(world));
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        by_rank[static_cast<size_t>(rank)] = TimeAll(rank, stores);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Times slowest = {};
    for (size_t i = 0; i < slowest.size(); ++i) {
      double total = 0;
      for (const Times& times : by_rank) {
        slowest[i] = std::max(slowest[i], times[i]);
        total += times[i];
      }
      slowest[i] = std::max(
          slowest[i], total * ranks_per_processor / static_cast<double>(world));
    }
    std::nth_element(slowest.begin(), slowest.begin() + kIterations / 2,
                     slowest.end());
    return slowest[kIterations / 2];
  }
};

}  // namespace

void MoveTraffic(const TrafficBuffers& buffers, int64_t rank, OpKind kind,
                 int64_t bytes, StoreMode stores) {
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  const Blocks parts = Blocks::Balanced(world, bytes / kElement);
  const int64_t block = bytes / world;
  const auto self = static_cast<size_t>(rank);
  std::byte* const output = buffers.outputs[self];
  // Adds this rank's part of all inputs.
  const auto fold = [&](const std::vector<std::byte*>& outputs) {
    const int64_t offset = parts.offset(rank) * kElement;
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (const std::byte* one : buffers.inputs) sources.push_back(one + offset);
    for (std::byte* one : outputs) targets.push_back(one + offset);
    collectives::Combine({.dtype = DType::kF32, .stores = stores}, sources,
                         targets, parts.count(rank));
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
      return CopyBytes(buffers.outputs[0] + rank * block, buffers.inputs[self],
                       block, stores);
    case OpKind::kScatter:
      return CopyBytes(output, buffers.inputs[0] + rank * block, block, stores);
    default:
      return;
  }
}

absl::StatusOr<double> MeasureTraffic(int64_t world, OpKind kind, int64_t bytes,
                                      const std::vector<int>& processors) {
  if (kind == OpKind::kBarrier || bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no bound for ", OpKindName(kind), " of ", bytes, " bytes"));
  }
  const int64_t room = (bytes + kPage - 1) / kPage * kPage + kPage;
  const int64_t needed = 2 * world * room;
  const int64_t free = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  if (needed > free / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "measuring the bound takes ", needed,
        " bytes of memory, more than half of the ", free, " free"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Buffer memory,
      Buffer::Allocate(HostMemory(), static_cast<size_t>(needed), kPage));
  TrafficBuffers buffers;
  for (int64_t r = 0; r < world; ++r) {
    buffers.inputs.push_back(memory.data() + 2 * r * room);
    buffers.outputs.push_back(memory.data() + (2 * r + 1) * room);
  }
  Move move = {buffers, kind, bytes, processors};
  const double cached = move.Measure(StoreMode::kCached);
  if (bytes < kStreamedBytes) return cached;
  return std::min(cached, move.Measure(StoreMode::kStreaming));
}

}  // namespace tessera::tools
