#include "tools/comm_bench/traffic_meter.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::tools {

namespace {

using collectives::Blocks;
using collectives::Combination;
using collectives::OpKind;
using collectives::StoreMode;

constexpr int64_t kElement = sizeof(float);

StoreMode ModeOf(bool streamed) {
  return streamed ? StoreMode::kStreaming : StoreMode::kCached;
}

// Reads elements [first, first + count) of every input, adds them and writes
// them to `outputs`.
void Fold(const TrafficBuffers& buffers, const std::vector<std::byte*>& outputs,
          int64_t first, int64_t count, bool streamed) {
  std::vector<const void*> sources;
  for (std::byte* input : buffers.inputs) {
    sources.push_back(input + first * kElement);
  }
  std::vector<void*> destinations;
  for (std::byte* output : outputs) {
    destinations.push_back(output + first * kElement);
  }
  Combination combination;
  combination.dtype = DType::kF32;
  combination.stores = ModeOf(streamed);
  Combine(combination, sources, destinations, count);
}

// Moves a block from every input to its place in the rank's output.
void Collect(const TrafficBuffers& buffers, int64_t rank, int64_t block,
             bool all_to_all, bool streamed) {
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  std::byte* const output = buffers.outputs[static_cast<size_t>(rank)];
  for (int64_t step = 0; step < world; ++step) {
    const int64_t from = (rank + step) % world;
    const std::byte* source = buffers.inputs[static_cast<size_t>(from)];
    CopyBytes(output + from * block, source + (all_to_all ? rank * block : 0),
              block, ModeOf(streamed));
  }
}

}  // namespace

void MoveTraffic(const TrafficBuffers& buffers, int64_t rank, OpKind kind,
                 int64_t bytes, bool streamed) {
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  const Blocks parts = Blocks::Balanced(world, bytes / kElement);
  const int64_t first = parts.offset(rank);
  const int64_t count = parts.count(rank);
  const int64_t block = bytes / world;
  std::byte* const output = buffers.outputs[static_cast<size_t>(rank)];
  const std::byte* const input = buffers.inputs[static_cast<size_t>(rank)];
  switch (kind) {
    case OpKind::kAllReduce:
      return Fold(buffers, buffers.outputs, first, count, streamed);
    case OpKind::kReduce:
      return Fold(buffers, {buffers.outputs[0]}, first, count, streamed);
    case OpKind::kReduceScatter:
      return Fold(buffers, {output}, first, count, streamed);
    case OpKind::kAllGather:
      return Collect(buffers, rank, block, /*all_to_all=*/false, streamed);
    case OpKind::kAllToAll:
      return Collect(buffers, rank, block, /*all_to_all=*/true, streamed);
    case OpKind::kBroadcast:
      return CopyBytes(output, buffers.inputs[0], bytes, ModeOf(streamed));
    case OpKind::kGather:
      return CopyBytes(buffers.outputs[0] + rank * block, input, block,
                       ModeOf(streamed));
    case OpKind::kScatter:
      return CopyBytes(output, buffers.inputs[0] + rank * block, block,
                       ModeOf(streamed));
    default:
      return;
  }
}

namespace {

using collectives::Deadline;
using collectives::ReceiveAll;
using collectives::SendAll;

constexpr int64_t kIterations = 15;
constexpr int64_t kPage = 4096;
// Streaming stores are tried from this size on.
constexpr int64_t kStreamedBytes = 1 << 20;
// Short moves are repeated, as the benchmark repeats short operations.
constexpr double kTimedSeconds = 40e-6;
constexpr int64_t kMostRepeats = 64;

struct Command {
  OpKind kind = OpKind::kBarrier;
  bool streamed = false;
  int64_t bytes = 0;
};

using Times = std::array<double, kIterations>;

// A barrier at the beginning of the shared memory.
struct Meeting {
  std::atomic<int64_t> arrived = 0;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

// Waits until all processes have arrived `round` times.
void Meet(Meeting& meeting, int64_t world, int64_t round) {
  meeting.arrived.fetch_add(1);
  while (meeting.arrived.load() < world * round) sched_yield();
}

int64_t RoomOf(int64_t max_bytes) {
  return (max_bytes + kPage - 1) / kPage * kPage + kPage;
}

TrafficBuffers BuffersIn(std::byte* memory, int64_t world, int64_t max_bytes) {
  const int64_t room = RoomOf(max_bytes);
  TrafficBuffers buffers;
  for (int64_t r = 0; r < world; ++r) {
    buffers.inputs.push_back(memory + kPage + 2 * r * room);
    buffers.outputs.push_back(memory + kPage + (2 * r + 1) * room);
  }
  return buffers;
}

// CPU time of this process, without other processes on the same processor.
double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

// The ranks that share a processor.
double RanksPerProcessor(int64_t world) {
  return std::max(1.0, static_cast<double>(world) /
                           static_cast<double>(AvailableProcessors()));
}

// Writes through the caches, like a kernel that computes the buffer; memset of
// large buffers bypasses them.
void FillByStores(std::byte* memory, size_t bytes) {
  auto* const values = reinterpret_cast<float*>(memory);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    values[i] = static_cast<float>(i % 1024);
  }
}

// One of the processes.
class Mover {
 public:
  Mover(std::byte* memory, int64_t rank, int64_t world, int64_t max_bytes)
      : buffers_(BuffersIn(memory, world, max_bytes)),
        meeting_(*reinterpret_cast<Meeting*>(memory)),
        rank_(rank),
        world_(world),
        ranks_per_processor_(RanksPerProcessor(world)) {}

  // Processor time of one move, in each iteration.
  Times Run(const Command& command) {
    int64_t repeats = 1;
    for (int guess = 0; guess < 3; ++guess) {
      const double once = Time(command, repeats) * ranks_per_processor_;
      repeats = static_cast<int64_t>(
          std::clamp<double>(kTimedSeconds / once, 1, kMostRepeats));
    }
    Times times = {};
    for (double& time : times) time = Time(command, repeats);
    return times;
  }

 private:
  double Time(const Command& command, int64_t repeats) {
    const auto own = static_cast<size_t>(rank_);
    const auto size = static_cast<size_t>(command.bytes);
    std::memset(buffers_.outputs[own], 0xa5, size);
    FillByStores(buffers_.inputs[own], size);
    Meet(meeting_, world_, ++round_);
    const double begin = ProcessorSeconds();
    for (int64_t i = 0; i < repeats; ++i) {
      MoveTraffic(buffers_, rank_, command.kind, command.bytes,
                  command.streamed);
    }
    const double end = ProcessorSeconds();
    Meet(meeting_, world_, ++round_);
    return std::max(end - begin, 1e-9) / static_cast<double>(repeats);
  }

  const TrafficBuffers buffers_;
  Meeting& meeting_;
  const int64_t rank_;
  const int64_t world_;
  const double ranks_per_processor_;
  int64_t round_ = 0;
};

// Serves commands until the socket closes.
void ServeTraffic(const UniqueFd& socket, int64_t rank, int64_t world,
                  Mover mover) {
  // Without permission the process stays unbound.
  static_cast<void>(
      BindThisThread(ShareOfProcessors(AllowedProcessors(), rank, world)));
  Command command;
  const Deadline never = Deadline::After(absl::Hours(10'000));
  while (ReceiveAll(socket,
                    {reinterpret_cast<char*>(&command), sizeof(command)}, never)
             .ok()) {
    const Times seconds = mover.Run(command);
    const char* bytes = reinterpret_cast<const char*>(seconds.data());
    if (!SendAll(socket, {bytes, sizeof(seconds)}, never).ok()) return;
  }
}

int64_t FreeMemory() {
  return sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrafficMeter>> TrafficMeter::Start(
    int64_t world, int64_t max_bytes) {
  const int64_t needed = kPage + 2 * world * RoomOf(max_bytes);
  if (needed > FreeMemory() / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat("measuring the bound takes ", needed,
                     " bytes of shared memory, more than half of the ",
                     FreeMemory(), " free"));
  }
  std::unique_ptr<TrafficMeter> meter(
      new TrafficMeter(world, max_bytes, RanksPerProcessor(world)));
  meter->memory_bytes_ = static_cast<size_t>(needed);
  TESSERA_RETURN_IF_ERROR(meter->MapMemory());
  TESSERA_RETURN_IF_ERROR(meter->ForkAll());
  return meter;
}

absl::Status TrafficMeter::MapMemory() {
  void* const memory = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "cannot map shared memory");
  }
  memory_ = static_cast<std::byte*>(memory);
  madvise(memory, memory_bytes_, MADV_HUGEPAGE);  // Best effort.
  new (memory) Meeting();
  return absl::OkStatus();
}

absl::Status TrafficMeter::ForkAll() {
  const pid_t parent = getpid();
  for (int64_t rank = 0; rank < world_; ++rank) {
    TESSERA_ASSIGN_OR_RETURN(auto ends, collectives::SocketPair());
    const pid_t pid = fork();
    if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      ends.first.Reset();
      for (Child& other : children_) other.socket.Reset();
      ServeTraffic(ends.second, rank, world_,
                   Mover(memory_, rank, world_, max_bytes_));
      _exit(0);
    }
    children_.push_back({pid, std::move(ends.first)});
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TrafficMeter::Measure(OpKind kind, int64_t bytes) {
  if (kind == OpKind::kBarrier || bytes < 1 || bytes > max_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("no bound for ", OpKindName(kind), " of ", bytes,
                     " bytes; at most ", max_bytes_));
  }
  TESSERA_ASSIGN_OR_RETURN(const double cached,
                           MeasureWith(kind, bytes, /*streamed=*/false));
  if (bytes < kStreamedBytes) return cached;
  TESSERA_ASSIGN_OR_RETURN(const double streamed,
                           MeasureWith(kind, bytes, /*streamed=*/true));
  return std::min(cached, streamed);
}

absl::StatusOr<double> TrafficMeter::MeasureWith(OpKind kind, int64_t bytes,
                                                 bool streamed) {
  Command command;
  command.kind = kind;
  command.streamed = streamed;
  command.bytes = bytes;
  const Deadline deadline = Deadline::After(absl::Seconds(120));
  for (const Child& child : children_) {
    TESSERA_RETURN_IF_ERROR(SendAll(
        child.socket,
        {reinterpret_cast<const char*>(&command), sizeof(command)}, deadline));
  }
  Times slowest = {};
  Times total = {};
  for (const Child& child : children_) {
    Times times;
    TESSERA_RETURN_IF_ERROR(ReceiveAll(
        child.socket, {reinterpret_cast<char*>(times.data()), sizeof(times)},
        deadline));
    for (size_t i = 0; i < times.size(); ++i) {
      slowest[i] = std::max(slowest[i], times[i]);
      total[i] += times[i];
    }
  }
  // Ranks that share a processor take turns.
  const double share = ranks_per_processor_ / static_cast<double>(world_);
  for (size_t i = 0; i < slowest.size(); ++i) {
    slowest[i] = std::max(slowest[i], total[i] * share);
  }
  std::nth_element(slowest.begin(), slowest.begin() + kIterations / 2,
                   slowest.end());
  return slowest[kIterations / 2];
}

TrafficMeter::~TrafficMeter() {
  for (Child& child : children_) {
    child.socket.Reset();
    kill(child.pid, SIGKILL);  // It may be in the middle of a measurement.
    while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

}  // namespace tessera::tools
