#include "base/device/emulated_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/arithmetic.h"
#include "base/device/access_checker.h"
#include "base/device/arena.h"
#include "base/extent_allocator.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using Clock = AccessChecker::Clock;
using std::chrono::steady_clock;

// Allocations are rounded up to multiples of this. Accesses to the block that
// follows each allocation are errors.
constexpr size_t kBlock = 256;
// After this time without new work, pending work starts: the host may be
// waiting for another rank that waits for this device.
constexpr auto kIdle = std::chrono::microseconds(300);
// The polling period for messages in flight.
constexpr auto kPoll = std::chrono::microseconds(50);
// With this much pending work, work is not delayed further.
constexpr size_t kMostPending = 65536;
// The name of copies.
constexpr std::string_view kCopy = "copy";

std::string PlaceName(const SourcePlace& place) {
  return absl::StrCat(place.file_name(), ":", place.line());
}

using Function =
    absl::AnyInvocable<absl::StatusOr<Event>(const DeviceAddresses&)>;

// A call inside a capture, for replays.
struct CapturedCall {
  enum class Kind { kLaunch, kRecord, kWait };
  Kind kind = Kind::kLaunch;
  size_t lane = 0;   // Index of the queue in the capture.
  size_t event = 0;  // Index of the recorded or awaited event.
  // The fields of a launch.
  std::string_view name = "";
  SourcePlace place = {};
  std::vector<MemoryAccess> accesses = {};
  std::shared_ptr<Function> run = nullptr;
};

// A capture that is active or ended. The core's mutex guards it.
struct EmulatedCapture {
  struct Lane {
    int queue = 0;
    std::string name;
    // For each lane, the number of its launches that precede the next call.
    std::vector<size_t> after;
    size_t launches = 0;
  };

  // Keeps the first error, and returns `error`.
  absl::Status Fail(absl::Status error) {
    if (status.ok()) status = error;
    return error;
  }

  void Join(Lane& lane, const std::vector<size_t>& after) {
    lane.after.resize(std::max(lane.after.size(), after.size()));
    for (size_t i = 0; i < after.size(); ++i) {
      lane.after[i] = std::max(lane.after[i], after[i]);
    }
  }

  // The queues with work for which the first queue has not waited.
  std::vector<std::string> Unjoined() const {
    std::vector<std::string> names;
    for (size_t i = 1; i < lanes.size(); ++i) {
      const std::vector<size_t>& after = lanes[0].after;
      const size_t joined = i < after.size() ? after[i] : 0;
      if (joined < lanes[i].launches) names.push_back(lanes[i].name);
    }
    return names;
  }

  const std::thread::id thread = std::this_thread::get_id();
  bool is_active = true;
  absl::Status status;
  std::vector<Lane> lanes;  // The first one began the capture.
  std::vector<CapturedCall> calls;
  std::vector<std::vector<size_t>> events;  // The work before each event.
  int64_t operations = 0;
};

// The point in the device's work at which an event happens.
struct EmulatedPoint {
  Clock clock;
  // The capture in which the event was recorded, or null.
  std::shared_ptr<EmulatedCapture> capture = nullptr;
  size_t event = 0;
  SourcePlace place = {};
};

// A memory file, mapped once for the device and once without access rights for
// the host, and its free ranges.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    if (real_ != nullptr) munmap(real_, size_);
    if (seen_ != nullptr) munmap(seen_, size_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  absl::Status Map(size_t bytes) {
    bytes = RoundUp(std::max<size_t>(bytes, 1), 1 << 16);
    file_ = UniqueFd(memfd_create("tessera_emulated_device", MFD_CLOEXEC));
    if (!file_.valid()) {
      return absl::UnavailableError(absl::StrCat(
          "an emulated device needs memfd_create: ", std::strerror(errno)));
    }
    if (ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) {
      return NoRoom(bytes);
    }
    const auto map = [&](int access) -> std::byte* {
      void* const data = mmap(nullptr, bytes, access,
                              MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
      return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
    };
    seen_ = map(PROT_NONE);
    real_ = map(PROT_READ | PROT_WRITE);
    size_ = bytes;
    if (seen_ == nullptr || real_ == nullptr) return NoRoom(bytes);
    ranges_.emplace(static_cast<int64_t>(size_));
    return absl::OkStatus();
  }

  // Null if there is not enough memory.
  std::byte* Allocate(size_t bytes, size_t alignment) {
    const std::optional<int64_t> begin = ranges_->Allocate(
        SizeOf(bytes), static_cast<int64_t>(std::max(alignment, kBlock)));
    if (!begin.has_value()) return nullptr;
    std::memset(real_ + *begin, 0xFF, bytes);
    return seen_ + *begin;
  }

  void Free(const std::byte* data, size_t bytes) {
    const int64_t begin = data - seen_, size = SizeOf(bytes);
    // Returns the pages to the system. If this fails, only their memory is
    // wasted.
    static_cast<void>(fallocate(
        file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, size));
    ranges_->Free(begin, size).IgnoreError();
  }

  std::byte* seen() const { return seen_; }
  size_t size() const { return size_; }
  DeviceAddresses addresses() const {
    return DeviceAddresses(seen_, size_, real_ - seen_);
  }

 private:
  // The size of an allocation with the block behind it.
  static int64_t SizeOf(size_t bytes) {
    return static_cast<int64_t>(RoundUp(bytes, kBlock) + kBlock);
  }
  static absl::Status NoRoom(size_t bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an emulated device of ", bytes, " bytes: ", std::strerror(errno),
        "; give it less memory_bytes"));
  }

  UniqueFd file_;
  std::byte* seen_ = nullptr;
  std::byte* real_ = nullptr;
  size_t size_ = 0;
  std::optional<ExtentAllocator> ranges_;  // Offsets.
};

}  // namespace

// The memory, queues and thread of a device.
class EmulatedDeviceCore {
 public:
  explicit EmulatedDeviceCore(const EmulatedDeviceOptions& options)
      : random_(options.seed) {
    if (options.timing) timeline_.emplace(*options.timing);
  }

  absl::Status Start(size_t memory_bytes) {
    TESSERA_RETURN_IF_ERROR(memory_.Map(memory_bytes));
    checker_.SetDeviceMemory(memory_.seen(), memory_.size());
    queues_.resize(1);  // Queue 0 is the host.
    thread_ = std::thread([this] { RunAll(); });
    return absl::OkStatus();
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  int AddQueue(std::string_view name) {
    const std::lock_guard lock(mutex_);
    queues_.emplace_back().name = std::string(name);
    return checker_.AddQueue(name);
  }

  // Null if there is not enough memory.
  absl::StatusOr<std::byte*> Allocate(size_t bytes, size_t alignment) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("memory is allocated"));
    std::byte* const data = memory_.Allocate(bytes, alignment);
    if (data != nullptr) checker_.Allocate(data, bytes);
    ++counts_.allocations;
    return data;
  }

  void Free(const std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    CheckOutsideCapture("memory is freed").IgnoreError();
    Keep(checker_.Free(data));
    memory_.Free(data, bytes);
  }

  void AddStaging(const std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    staging_[data] = bytes;
  }

  // Returns false, and keeps the memory, if work may still use it.
  bool FreeStaging(std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    staging_.erase(data);
    const MemoryAccess free = WritesTo(std::span<std::byte>(data, bytes));
    CheckCapturedAccess(free, "free", {}).IgnoreError();
    const absl::Status status = checker_.HostAccess("free", {}, free);
    Keep(status);
    if (!status.ok()) kept_.emplace_back(data, &std::free);
    return status.ok();
  }

  absl::Status Enqueue(int queue, HostFunction function,
                       const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    if (function.name != kCopy) {
      for (const MemoryAccess& access : function.accesses) {
        Keep(CheckReachable(queue, function.name, access, place));
      }
      TESSERA_RETURN_IF_ERROR(status_);
    }
    if (EmulatedCapture* const capture = CaptureOf(queue)) {
      AddLaunch(*capture, queue, std::move(function), place);
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(EnqueueNow(queue, std::move(function), place));
    CountOperation();
    return absl::OkStatus();
  }

  absl::Status BeginCapture(int queue, const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    TESSERA_RETURN_IF_ERROR(CheckOutsideCapture(
        absl::StrCat("a capture begins at ", PlaceName(place))));
    const auto capture = std::make_shared<EmulatedCapture>();
    capture->lanes.push_back({.queue = queue,
                              .name = queues_[At(queue)].name,
                              .after = {},
                              .launches = 0});
    queues_[At(queue)].capture = capture;
    captures_.push_back(capture);
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<EmulatedCapture>> EndCapture(
      int queue, const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    const std::string& name = queues_[At(queue)].name;
    EmulatedCapture* const own = CaptureOf(queue);
    if (own == nullptr || own->lanes[0].queue != queue) {
      return absl::FailedPreconditionError(
          absl::StrCat("queue ", name, " ends a capture at ", PlaceName(place),
                       " that it has not begun"));
    }
    std::shared_ptr<EmulatedCapture> capture = queues_[At(queue)].capture;
    capture->is_active = false;
    std::erase(captures_, capture);
    for (const EmulatedCapture::Lane& lane : capture->lanes) {
      queues_[At(lane.queue)].capture = nullptr;
    }
    TESSERA_RETURN_IF_ERROR(capture->status);
    const std::vector<std::string> unjoined = capture->Unjoined();
    if (!unjoined.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "capture of queue ", name, " at ", PlaceName(place), ", which ",
          absl::StrJoin(unjoined, ", "), " joined; queue ", name,
          " should wait for an event that each of them records after its last "
          "work"));
    }
    // The queues that joined may be destroyed before the graph.
    for (size_t i = 1; i < capture->lanes.size(); ++i) {
      EmulatedCapture::Lane& lane = capture->lanes[i];
      lane.queue = TakeLane(lane.name);
    }
    return capture;
  }

  // Waits for the work of a queue that is being destroyed.
  void Drain(int queue) {
    std::unique_lock lock(mutex_);
    if (status_.ok()) Await(lock, Clock(checker_.ClockOf(queue)));
  }

  // Ends the capture of a queue that is destroyed during it.
  void Abandon(int queue) {
    const std::lock_guard lock(mutex_);
    EmulatedCapture* const capture = CaptureOf(queue);
    if (capture == nullptr) return;
    capture
        ->Fail(absl::FailedPreconditionError(
            absl::StrCat("queue ", queues_[At(queue)].name,
                         " was destroyed inside a capture")))
        .IgnoreError();
    if (capture->lanes[0].queue != queue) return;
    capture->is_active = false;
    std::erase_if(captures_,
                  [&](const auto& one) { return one.get() == capture; });
  }

  // Called when the capture's graph is destroyed; replays may still run.
  void ReturnLanes(const EmulatedCapture& capture) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < capture.lanes.size(); ++i) {
      free_lanes_.push_back(capture.lanes[i].queue);
    }
  }

  // Enqueues the calls of an ended capture, with all checks.
  absl::Status Replay(int queue, const EmulatedCapture& capture,
                      const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    if (CaptureOf(queue) != nullptr) {
      return CheckOutsideCapture(
          absl::StrCat("a graph is replayed at ", PlaceName(place)));
    }
    std::vector<Clock> events(capture.events.size());
    for (const CapturedCall& call : capture.calls) {
      const int lane = call.lane == 0 ? queue : capture.lanes[call.lane].queue;
      switch (call.kind) {
        case CapturedCall::Kind::kLaunch:
          TESSERA_RETURN_IF_ERROR(EnqueueNow(
              lane,
              {.name = call.name,
               .accesses = {call.accesses.begin(), call.accesses.end()},
               .run = [run = call.run](
                          const DeviceAddresses& at) { return (*run)(at); }},
              call.place));
          break;
        case CapturedCall::Kind::kRecord:
          events[call.event] = checker_.ClockOf(lane);
          break;
        case CapturedCall::Kind::kWait:
          checker_.Join(lane, events[call.event]);
          break;
      }
    }
    CountOperation();
    return absl::OkStatus();
  }

  // Covers the work of the queue and everything that it has waited for.
  absl::StatusOr<EmulatedPoint> Record(int queue, const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    EmulatedPoint point = {.clock = {}, .place = place};
    if (EmulatedCapture* const capture = CaptureOf(queue)) {
      EmulatedCapture::Lane& lane = capture->lanes[LaneOf(*capture, queue)];
      point.capture = queues_[At(queue)].capture;
      point.event = capture->events.size();
      capture->events.push_back(lane.after);
      AddCall(*capture, queue, CapturedCall::Kind::kRecord, point.event);
    } else {
      point.clock = checker_.ClockOf(queue);
    }
    return point;
  }

  absl::Status Join(int queue, const EmulatedPoint& point,
                    const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    EmulatedCapture* const own = CaptureOf(queue);
    if (own == nullptr && point.capture == nullptr) {
      checker_.Join(queue, point.clock);
      return absl::OkStatus();
    }
    if (own != point.capture.get()) {
      const bool is_past =
          point.capture == nullptr && checker_.HostKnows(point.clock);
      if (is_past) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(JoinCapture(queue, point, place));
    }
    EmulatedCapture& capture = *point.capture;
    capture.Join(capture.lanes[LaneOf(capture, queue)],
                 capture.events[point.event]);
    AddCall(capture, queue, CapturedCall::Kind::kWait, point.event);
    return absl::OkStatus();
  }

  // Called before the host waits for work outside the device.
  absl::Status CheckHostWait(std::string_view what) {
    const std::lock_guard lock(mutex_);
    return CheckOutsideCapture(what);
  }

  // With a timeline, the modelled time decides, and work that should be done by
  // then is completed.
  absl::StatusOr<bool> Test(const EmulatedPoint& point) {
    std::unique_lock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    TESSERA_RETURN_IF_ERROR(CheckHost(point, "tests"));
    if (timeline_) {
      if (!timeline_->HaveHappened(point.clock)) return false;
      AwaitDone(lock, point.clock);
      TESSERA_RETURN_IF_ERROR(status_);
    }
    if (!IsDone(point.clock)) return false;
    JoinHost(point.clock);
    return true;
  }

  absl::Status Wait(const EmulatedPoint& point) {
    std::unique_lock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(CheckHost(point, "waits for"));
    Await(lock, point.clock);
    return status_;
  }

  // Blocks the host until one queue, or every queue if `only` is empty, is
  // idle.
  absl::Status Synchronize(std::optional<int> only, const SourcePlace& place) {
    std::unique_lock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(CheckOutsideCapture(absl::StrCat(
        "the host waits for ",
        only ? absl::StrCat("queue ", queues_[At(*only)].name) : "the device",
        " at ", PlaceName(place))));
    if (only) {
      Await(lock, Clock(checker_.ClockOf(*only)));
      return status_;
    }
    for (int queue = 1; queue < static_cast<int>(queues_.size()); ++queue) {
      Await(lock, Clock(checker_.ClockOf(queue)));
    }
    return status_;
  }

  void CountHostWait() {
    const std::lock_guard lock(mutex_);
    CountWait();
  }

  absl::Status HostAccess(const MemoryAccess& access, std::string_view what,
                          const SourcePlace& place) {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(status_);
    TESSERA_RETURN_IF_ERROR(CheckCapturedAccess(access, what, place));
    Keep(checker_.HostAccess(what, place, access));
    if (timeline_) timeline_->HostWorks(what, access.size);
    return status_;
  }

  DeviceCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  DeviceAddresses addresses() const { return memory_.addresses(); }
  SimulatedTime simulated_time() const {
    const std::lock_guard lock(mutex_);
    return timeline_ ? timeline_->time() : SimulatedTime();
  }

 private:
  struct Work {
    AccessChecker::Operation operation;
    Clock after;  // For each queue, the work that it waits for.
    Function run;
  };
  struct QueueState {
    std::string name;
    std::deque<Work> work;
    uint64_t done = 0;
    // If set, the first work has begun and is done when this event happens.
    std::optional<Event> under_way;
    uint64_t priority = 0;
    std::shared_ptr<EmulatedCapture> capture;  // Null outside of captures.
  };

  static size_t At(int queue) { return static_cast<size_t>(queue); }

  // Kernels can access device memory, which checker_ checks, and staging
  // memory. On a GPU an access to other host memory ends the process's use of
  // the GPU.
  absl::Status CheckReachable(int queue, std::string_view kernel,
                              const MemoryAccess& access,
                              const SourcePlace& place) const {
    if (access.size == 0) return absl::OkStatus();
    const std::byte* const begin = access.data;
    const std::byte* const device = memory_.seen();
    if (begin >= device && begin < device + memory_.size()) {
      return absl::OkStatus();
    }
    const auto next = staging_.upper_bound(begin);
    if (next != staging_.begin()) {
      const auto& [data, bytes] = *std::prev(next);
      if (begin + access.size <= data + bytes) return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        "\"", kernel, "\" on queue ", queues_[At(queue)].name, " (",
        PlaceName(place), ") ", access.writes ? "writes " : "reads ",
        access.size,
        " bytes of host memory that the device cannot access; use memory of "
        "the device or of its staging_memory()"));
  }

  absl::Status EnqueueNow(int queue, HostFunction function,
                          const SourcePlace& place) {
    Clock after = checker_.ClockOf(queue);
    const AccessChecker::Operation operation =
        checker_.Begin(queue, function.name, place);
    for (const MemoryAccess& access : function.accesses) {
      Keep(checker_.Access(operation, access));
      TESSERA_RETURN_IF_ERROR(status_);
    }
    if (timeline_) AddToTimeline(queue, after, function);
    queues_[At(queue)].work.push_back(
        {operation, std::move(after), std::move(function.run)});
    ++pending_;
    last_enqueued_ = steady_clock::now();
    if (pending_ == 1 || pending_ == kMostPending) changed_.notify_all();
    return absl::OkStatus();
  }

  void CountOperation() {
    ++counts_.operations;
    const auto thread = std::this_thread::get_id();
    if (thread != last_thread_) threads_.insert(last_thread_ = thread);
  }

  // Null if the queue is not part of a capture.
  EmulatedCapture* CaptureOf(int queue) const {
    EmulatedCapture* const capture = queues_[At(queue)].capture.get();
    return capture != nullptr && capture->is_active ? capture : nullptr;
  }
  static size_t LaneOf(const EmulatedCapture& capture, int queue) {
    size_t lane = 0;
    while (capture.lanes[lane].queue != queue) ++lane;
    return lane;
  }

  static void AddCall(EmulatedCapture& capture, int queue,
                      CapturedCall::Kind kind, size_t event) {
    capture.calls.push_back(
        {.kind = kind, .lane = LaneOf(capture, queue), .event = event});
  }
  static void AddLaunch(EmulatedCapture& capture, int queue,
                        HostFunction function, const SourcePlace& place) {
    const size_t index = LaneOf(capture, queue);
    EmulatedCapture::Lane& lane = capture.lanes[index];
    lane.after.resize(std::max(lane.after.size(), index + 1));
    lane.after[index] = ++lane.launches;
    ++capture.operations;
    capture.calls.push_back(
        {.kind = CapturedCall::Kind::kLaunch,
         .lane = index,
         .name = function.name,
         .place = place,
         .accesses = {function.accesses.begin(), function.accesses.end()},
         .run = std::make_shared<Function>(std::move(function.run))});
  }

  // Adds the queue to the capture in which the event was recorded.
  absl::Status JoinCapture(int queue, const EmulatedPoint& point,
                           const SourcePlace& place) {
    QueueState& state = queues_[At(queue)];
    const std::string wait =
        absl::StrCat("queue ", state.name, " waits at ", PlaceName(place),
                     " for the event recorded at ", PlaceName(point.place));
    if (EmulatedCapture* const own = CaptureOf(queue)) {
      return own->Fail(absl::FailedPreconditionError(absl::StrCat(
          wait, ", which is not part of the capture of queue ",
          own->lanes[0].name,
          "; wait before the capture, and let the host know that it has "
          "happened")));
    }
    EmulatedCapture& capture = *point.capture;
    if (!capture.is_active || capture.thread != std::this_thread::get_id()) {
      return absl::FailedPreconditionError(absl::StrCat(
          wait, " in a capture that has ended or is another thread's"));
    }
    capture.lanes.push_back(
        {.queue = queue, .name = state.name, .after = {}, .launches = 0});
    state.capture = point.capture;
    return absl::OkStatus();
  }

  // Fails with FailedPrecondition, and records it in the capture, if this
  // thread has one.
  absl::Status CheckOutsideCapture(std::string_view what) const {
    for (const std::shared_ptr<EmulatedCapture>& capture : captures_) {
      if (capture->thread != std::this_thread::get_id()) continue;
      return capture->Fail(absl::FailedPreconditionError(absl::StrCat(
          "emulated: ", what, " inside the capture of queue ",
          capture->lanes[0].name, "; do it before or after the capture")));
    }
    return absl::OkStatus();
  }
  // Fails likewise if the capture uses the memory and either of the two writes
  // it.
  absl::Status CheckCapturedAccess(const MemoryAccess& access,
                                   std::string_view what,
                                   const SourcePlace& place) const {
    for (const std::shared_ptr<EmulatedCapture>& capture : captures_) {
      for (const CapturedCall& call : capture->calls) {
        for (const MemoryAccess& other : call.accesses) {
          if ((!access.writes && !other.writes) ||
              access.data >= other.data + other.size ||
              other.data >= access.data + access.size) {
            continue;
          }
          return capture->Fail(absl::FailedPreconditionError(absl::StrCat(
              "\"", what, "\" of the host at ", PlaceName(place), " accesses ",
              "memory that \"", call.name, "\" (", PlaceName(call.place),
              ") uses inside the capture of queue ", capture->lanes[0].name,
              "; do it before or after the capture")));
        }
      }
    }
    return absl::OkStatus();
  }
  // Checks host waits and tests.
  absl::Status CheckHost(const EmulatedPoint& point,
                         std::string_view verb) const {
    if (point.capture == nullptr && checker_.HostKnows(point.clock)) {
      return absl::OkStatus();
    }
    const std::string what = absl::StrCat(
        "the host ", verb, " the event recorded at ", PlaceName(point.place));
    TESSERA_RETURN_IF_ERROR(CheckOutsideCapture(what));
    if (point.capture == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        what, " in a capture, which never happens; use an event of a replay"));
  }

  // Takes a queue of the device for the replayed work of a queue that joined a
  // capture.
  int TakeLane(std::string_view name) {
    if (!free_lanes_.empty()) {
      const int lane = free_lanes_.back();
      free_lanes_.pop_back();
      return lane;
    }
    queues_.emplace_back().name = absl::StrCat(name, " (graph)");
    return checker_.AddQueue(queues_.back().name);
  }

  // Keeps the first error. The host has not waited for work after it.
  void Keep(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    if (!status_.ok()) done_.notify_all();
  }

  void JoinHost(const Clock& point) {
    checker_.Join(AccessChecker::kHost, point);
    if (timeline_) timeline_->HostWaits(point);
  }

  bool IsOnDevice(const MemoryAccess& access) const {
    return access.data >= memory_.seen() &&
           access.data < memory_.seen() + memory_.size();
  }

  // Copies have one source and one target.
  void AddToTimeline(int queue, const Clock& after,
                     const HostFunction& function) {
    size_t bytes = 0;
    for (const MemoryAccess& access : function.accesses) bytes += access.size;
    auto kind = DeviceTimeline::Kind::kWork;
    if (function.name == kCopy &&
        IsOnDevice(function.accesses[0]) != IsOnDevice(function.accesses[1])) {
      bytes /= 2;
      kind = IsOnDevice(function.accesses[0]) ? DeviceTimeline::Kind::kDownload
                                              : DeviceTimeline::Kind::kUpload;
    }
    timeline_->Add(At(queue), after, kind, function.name, bytes);
  }

  void CountWait() {
    if (threads_.contains(std::this_thread::get_id())) ++counts_.host_waits;
  }

  // After an error no work begins, but running work still uses its memory.
  void AwaitDone(std::unique_lock<std::mutex>& lock, const Clock& point) {
    ++waiting_;
    changed_.notify_all();
    done_.wait(lock,
               [&] { return status_.ok() ? IsDone(point) : !is_running_; });
    --waiting_;
  }

  void Await(std::unique_lock<std::mutex>& lock, const Clock& point) {
    if (checker_.HostKnows(point)) return;
    CountWait();
    AwaitDone(lock, point);
    if (!status_.ok()) return;
    JoinHost(point);
    if (checker_.segments() < 2 * segments_kept_ + 1024) return;
    checker_.ForgetPast();
    segments_kept_ = checker_.segments();
  }

  bool IsDone(const Clock& point) const {
    for (size_t i = 1; i < point.size(); ++i) {
      if (queues_[i].done < point[i]) return false;
    }
    return true;
  }

  bool IsReady(const QueueState& queue) const {
    return !queue.work.empty() && !queue.under_way &&
           IsDone(queue.work.front().after);
  }

  // Returns the queue to run next; null if none is ready. A queue runs for as
  // long as it can until the priorities change, so that orders are extreme (as
  // in Burckhardt et al., A Randomized Scheduler with Probabilistic Guarantees
  // of Finding Bugs, ASPLOS 2010).
  QueueState* Choose() {
    if (random_() % 16 == 0) {
      for (QueueState& queue : queues_) queue.priority = random_();
    }
    QueueState* next = nullptr;
    for (QueueState& queue : queues_) {
      if (!IsReady(queue)) continue;
      if (next == nullptr || queue.priority > next->priority) next = &queue;
    }
    return next;
  }

  void Finish(QueueState& queue) {
    queue.done = queue.work.front().operation.number;
    queue.under_way.reset();
    queue.work.pop_front();
    --pending_;
    if (waiting_ > 0) done_.notify_all();
  }

  void Fail(const QueueState& queue, const absl::Status& error) {
    const AccessChecker::Operation& operation = queue.work.front().operation;
    Keep(Annotate(error, absl::StrCat("\"", operation.name, "\" on queue ",
                                      queue.name, " of the emulated device")));
  }

  // Tests whether work that has begun is done. Returns true if any of it is.
  bool TestUnderWay() {
    bool any = false;
    for (QueueState& queue : queues_) {
      if (!queue.under_way) continue;
      const absl::StatusOr<bool> happened = queue.under_way->Test();
      if (happened.ok() && !*happened) continue;
      if (!happened.ok()) Fail(queue, happened.status());
      Finish(queue);
      any = true;
    }
    return any;
  }

  bool IsUnderWay() const {
    return std::any_of(
        queues_.begin(), queues_.end(),
        [](const QueueState& queue) { return queue.under_way.has_value(); });
  }

  // Waits until there is work to execute. Returns false when the device is
  // destroyed and no work is left.
  bool AwaitReason(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (stops_) return pending_ > 0 && (status_.ok() || IsUnderWay());
      if (pending_ == 0 || (!status_.ok() && !IsUnderWay())) {
        changed_.wait(lock);
        continue;
      }
      if (waiting_ > 0 || pending_ >= kMostPending || IsUnderWay()) return true;
      const auto idle_at = last_enqueued_ + kIdle;
      if (steady_clock::now() >= idle_at) return true;
      changed_.wait_until(lock, idle_at);
    }
  }

  void RunAll() {
    std::unique_lock lock(mutex_);
    int tries = 0;
    while (AwaitReason(lock)) {
      if (TestUnderWay()) tries = 0;
      QueueState* const next = status_.ok() ? Choose() : nullptr;
      if (next != nullptr) {
        RunFirst(lock, *next);
        tries = 0;
        continue;
      }
      // Only messages are in flight. They are polled, and new work ends the
      // wait.
      if (++tries > 200) {
        changed_.wait_for(lock, kPoll);
      } else {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
  }

  void RunFirst(std::unique_lock<std::mutex>& lock, QueueState& queue) {
    auto run = std::move(queue.work.front().run);
    const DeviceAddresses addresses = memory_.addresses();
    is_running_ = true;
    lock.unlock();
    absl::StatusOr<Event> done = run(addresses);
    run = nullptr;
    lock.lock();
    is_running_ = false;
    if (!status_.ok()) done_.notify_all();
    if (!done.ok()) {
      Fail(queue, done.status());
      Finish(queue);
    } else if (done->state() == nullptr) {
      Finish(queue);
    } else {
      queue.under_way = *std::move(done);
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // For the device's thread.
  std::condition_variable done_;     // For threads that wait.
  DeviceMemory memory_;
  AccessChecker checker_;
  std::deque<QueueState> queues_;  // By number; 0 is the host and empty.
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<EmulatedCapture>> captures_;  // Not ended.
  std::vector<int> free_lanes_;  // Queues that no graph uses.
  absl::Status status_;
  DeviceCounts counts_;
  std::optional<DeviceTimeline> timeline_;
  std::map<const std::byte*, size_t> staging_;  // From begin to size.
  // Staging memory that was freed while in use.
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> kept_;
  std::set<std::thread::id> threads_;  // Threads that have enqueued work.
  std::thread::id last_thread_;
  size_t pending_ = 0;
  size_t segments_kept_ = 0;  // After the last ForgetPast.
  bool is_running_ = false;   // A host function is running.
  int waiting_ = 0;
  bool stops_ = false;
  steady_clock::time_point last_enqueued_;
  std::thread thread_;
};

namespace {

class EmulatedEvent final : public EventState {
 public:
  EmulatedEvent(std::shared_ptr<EmulatedDeviceCore> core, const Device* device,
                EmulatedPoint point)
      : core_(std::move(core)), device_(device), point_(std::move(point)) {}

  const Device* device() const override { return device_; }
  absl::StatusOr<bool> Test() override { return core_->Test(point_); }
  absl::Status Wait() override { return core_->Wait(point_); }
  const EmulatedPoint& point() const { return point_; }

 private:
  const std::shared_ptr<EmulatedDeviceCore> core_;
  const Device* const device_;
  const EmulatedPoint point_;
};

class EmulatedGraph final : public DeviceGraph {
 public:
  EmulatedGraph(std::shared_ptr<EmulatedDeviceCore> core, const Device& device,
                std::shared_ptr<const EmulatedCapture> capture)
      : core_(std::move(core)), device_(device), capture_(std::move(capture)) {}
  ~EmulatedGraph() override { core_->ReturnLanes(*capture_); }

  const Device& device() const override { return device_; }
  int64_t operations() const override { return capture_->operations; }
  const EmulatedCapture& capture() const { return *capture_; }

 private:
  const std::shared_ptr<EmulatedDeviceCore> core_;
  const Device& device_;
  const std::shared_ptr<const EmulatedCapture> capture_;
};

class EmulatedMemory final : public MemoryResource {
 public:
  explicit EmulatedMemory(std::shared_ptr<EmulatedDeviceCore> core)
      : core_(std::move(core)) {}

  MemoryKind kind() const override { return MemoryKind::kDevice; }
  int device_ordinal() const override { return 0; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_ASSIGN_OR_RETURN(void* const data,
                             core_->Allocate(bytes, alignment));
    if (data != nullptr) return data;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of emulated device ",
                     "memory; give the device more memory_bytes"));
  }
  void Deallocate(void* data, size_t bytes, size_t) override {
    core_->Free(static_cast<std::byte*>(data), bytes);
  }

 private:
  const std::shared_ptr<EmulatedDeviceCore> core_;
};

// Ordinary memory that reports that it is pinned. If it is freed while a copy
// may use it, it stays allocated, so that the copy does no harm, and the device
// gets an error.
class EmulatedStaging final : public MemoryResource {
 public:
  explicit EmulatedStaging(std::shared_ptr<EmulatedDeviceCore> core)
      : core_(std::move(core)) {}

  MemoryKind kind() const override { return MemoryKind::kPinnedHost; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_ASSIGN_OR_RETURN(void* const data,
                             HostMemory()->Allocate(bytes, alignment));
    core_->AddStaging(static_cast<const std::byte*>(data), bytes);
    return data;
  }
  void Deallocate(void* data, size_t bytes, size_t alignment) override {
    if (core_->FreeStaging(static_cast<std::byte*>(data), bytes)) {
      HostMemory()->Deallocate(data, bytes, alignment);
    }
  }

 private:
  const std::shared_ptr<EmulatedDeviceCore> core_;
};

class EmulatedQueue final : public Queue {
 public:
  EmulatedQueue(std::shared_ptr<EmulatedDeviceCore> core, Device& device,
                std::string_view name)
      : core_(std::move(core)),
        device_(device),
        name_(name),
        index_(core_->AddQueue(name)) {}
  ~EmulatedQueue() override {
    // Nobody can receive the errors any more.
    core_->Abandon(index_);
    core_->Drain(index_);
  }

  std::string_view name() const override { return name_; }
  Device& device() const override { return device_; }
  bool is_immediate() const override { return false; }

  absl::Status Copy(std::span<const std::byte> source,
                    std::span<std::byte> target, SourcePlace place) override {
    if (source.size() != target.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy of ", source.size(), " bytes to ", target.size(),
                       " bytes; give two ranges of one size"));
    }
    if (source.empty() || source.data() == target.data()) {
      return absl::OkStatus();
    }
    return Launch(
        {.name = kCopy,
         .accesses = {ReadsFrom(source), WritesTo(target)},
         .run = [source,
                 target](const DeviceAddresses& at) -> absl::StatusOr<Event> {
           std::memmove(at(target.data()), at(source.data()), source.size());
           return Event();
         }},
        place);
  }

  absl::Status Fill(std::byte value, std::span<std::byte> target,
                    SourcePlace place) override {
    if (target.empty()) return absl::OkStatus();
    return Launch(
        {.name = "fill",
         .accesses = {WritesTo(target)},
         .run = [value,
                 target](const DeviceAddresses& at) -> absl::StatusOr<Event> {
           std::memset(at(target.data()), std::to_integer<int>(value),
                       target.size());
           return Event();
         }},
        place);
  }

  absl::Status Launch(HostFunction function, SourcePlace place) override {
    return core_->Enqueue(index_, std::move(function), place);
  }

  absl::StatusOr<Event> Record(SourcePlace place) override {
    TESSERA_ASSIGN_OR_RETURN(EmulatedPoint point, core_->Record(index_, place));
    return Event(
        std::make_shared<EmulatedEvent>(core_, &device_, std::move(point)));
  }

  absl::Status Wait(const Event& given, SourcePlace place) override {
    TESSERA_ASSIGN_OR_RETURN(const Event event, given.Enqueued());
    if (event.state() == nullptr) return absl::OkStatus();
    if (event.state()->device() == &device_) {
      return core_->Join(
          index_, static_cast<const EmulatedEvent&>(*event.state()).point(),
          place);
    }
    TESSERA_ASSIGN_OR_RETURN(const bool happened, event.Test());
    if (happened) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(core_->CheckHostWait(
        absl::StrCat("the host waits at ", PlaceName(place))));
    core_->CountHostWait();
    return event.Wait();
  }

  absl::Status Synchronize(SourcePlace place) override {
    return core_->Synchronize(index_, place);
  }

  absl::Status BeginCapture(SourcePlace place) override {
    return core_->BeginCapture(index_, place);
  }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(
      SourcePlace place) override {
    TESSERA_ASSIGN_OR_RETURN(auto capture, core_->EndCapture(index_, place));
    return std::make_unique<EmulatedGraph>(core_, device_, std::move(capture));
  }
  absl::Status Replay(DeviceGraph& graph, SourcePlace place) override {
    if (&graph.device() != &device_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a graph of device ", graph.device().name(),
                       " for queue ", name_, " of another device at ",
                       PlaceName(place), "; replay it on its own device"));
    }
    return core_->Replay(index_, static_cast<EmulatedGraph&>(graph).capture(),
                         place);
  }

 private:
  const std::shared_ptr<EmulatedDeviceCore> core_;
  Device& device_;
  const std::string name_;
  const int index_;
};

}  // namespace

EmulatedDevice::EmulatedDevice(std::shared_ptr<EmulatedDeviceCore> core)
    : core_(std::move(core)) {}

EmulatedDevice::~EmulatedDevice() { core_->Stop(); }

absl::StatusOr<std::shared_ptr<EmulatedDevice>> EmulatedDevice::Create(
    const EmulatedDeviceOptions& options) {
  auto core = std::make_shared<EmulatedDeviceCore>(options);
  TESSERA_RETURN_IF_ERROR(core->Start(options.memory_bytes));
  std::shared_ptr<EmulatedDevice> device(new EmulatedDevice(std::move(core)));
  TESSERA_RETURN_IF_ERROR(device->TakeMemory(options.arena_bytes));
  return device;
}

absl::Status EmulatedDevice::TakeMemory(size_t arena_bytes) {
  memory_ = std::make_shared<EmulatedMemory>(core_);
  if (arena_bytes == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(memory_, Arena::Create(memory_, arena_bytes));
  return absl::OkStatus();
}

std::shared_ptr<MemoryResource> EmulatedDevice::staging_memory() const {
  return std::make_shared<EmulatedStaging>(core_);
}

absl::StatusOr<std::unique_ptr<Queue>> EmulatedDevice::CreateQueue(
    std::string_view name) {
  return std::make_unique<EmulatedQueue>(core_, *this, name);
}

absl::Status EmulatedDevice::Synchronize(SourcePlace place) {
  return core_->Synchronize(std::nullopt, place);
}

absl::Status EmulatedDevice::HostAccess(const MemoryAccess& access,
                                        std::string_view what,
                                        SourcePlace place) {
  return core_->HostAccess(access, what, place);
}

DeviceCounts EmulatedDevice::counts() const { return core_->counts(); }

SimulatedTime EmulatedDevice::simulated_time() const {
  return core_->simulated_time();
}

DeviceAddresses EmulatedDevice::addresses() const { return core_->addresses(); }

}  // namespace tessera
