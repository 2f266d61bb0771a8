#include "base/device/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/arena.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The alignment of the runtime's allocations.
constexpr size_t kCudaAlignment = 256;

absl::Status CheckAlignment(size_t alignment) {
  if (alignment <= kCudaAlignment) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("alignment of ", alignment,
                   " bytes in memory of the CUDA runtime; expected at most ",
                   kCudaAlignment));
}

std::string PlaceName(const SourcePlace& place) {
  return absl::StrCat(place.file_name(), ":", place.line());
}

// The known progress of a queue's work, which is numbered from 1.
struct Progress {
  std::string queue;
  std::atomic<uint64_t> enqueued = 0;
  std::atomic<uint64_t> done = 0;

  void Finish(uint64_t number) {
    uint64_t before = done.load();
    while (before < number && !done.compare_exchange_weak(before, number)) {
    }
  }
};

// A capture that has begun. One thread makes its calls; other threads read only
// `is_active`.
struct CudaCapture {
  explicit CudaCapture(std::string_view queue) : origin(queue) {}

  // Keeps the first error, and returns `error`.
  absl::Status Fail(absl::Status error) {
    if (status.ok()) status = error;
    return error;
  }
  // The names of the capture's queues, for errors.
  std::string JoinedQueues() const { return absl::StrJoin(joined, ", "); }

  const std::string origin;
  const std::thread::id thread = std::this_thread::get_id();
  std::atomic<bool> is_active = true;
  absl::Status status;
  int64_t operations = 0;
  std::vector<std::string> joined;
  std::vector<std::function<void()>> frees;  // Run after the end.
};

}  // namespace

// The state that a device shares with its queues, events and memory.
class CudaDeviceCore {
 public:
  CudaDeviceCore(std::shared_ptr<CudaRuntime> runtime, int ordinal)
      : runtime_(std::move(runtime)),
        ordinal_(ordinal),
        name_(absl::StrCat("cuda:", ordinal)) {}
  ~CudaDeviceCore() {
    const ScopedCudaDevice device(*runtime_, ordinal_);
    for (const CudaRuntime::EventHandle event : free_events_) {
      runtime_->DestroyEvent(event).IgnoreError();
    }
  }

  CudaRuntime& runtime() const { return *runtime_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }

  // The first error of the device's work.
  absl::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // Keeps the first error, and returns it.
  absl::Status Keep(const absl::Status& error, std::string_view what) {
    const std::lock_guard lock(mutex_);
    if (status_.ok() && !error.ok()) {
      status_ = Annotate(error, absl::StrCat(name_, ": ", what));
    }
    return status_;
  }

  void CountOperation() {
    const std::lock_guard lock(mutex_);
    ++counts_.operations;
    const auto thread = std::this_thread::get_id();
    if (thread != last_thread_) threads_.insert(last_thread_ = thread);
  }
  void CountWait() {
    const std::lock_guard lock(mutex_);
    if (threads_.contains(std::this_thread::get_id())) ++counts_.host_waits;
  }
  DeviceCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void BeginCapture(std::shared_ptr<CudaCapture> capture) {
    const std::lock_guard lock(mutex_);
    captures_.push_back(std::move(capture));
  }
  void EndCapture(const std::shared_ptr<CudaCapture>& capture) {
    {
      const std::lock_guard lock(mutex_);
      std::erase(captures_, capture);
    }
    capture->is_active = false;
    for (const std::function<void()>& free : std::exchange(capture->frees, {}))
      free();
  }
  // The capture of the calling thread; null if there is none.
  std::shared_ptr<CudaCapture> CaptureOfThread() const {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<CudaCapture>& capture : captures_) {
      if (capture->thread == std::this_thread::get_id()) return capture;
    }
    return nullptr;
  }
  // Fails with FailedPrecondition, and records it in the capture, if this
  // thread has one.
  absl::Status CheckOutsideCapture(std::string_view what) const {
    const std::shared_ptr<CudaCapture> capture = CaptureOfThread();
    if (capture == nullptr) return absl::OkStatus();
    return capture->Fail(absl::FailedPreconditionError(
        absl::StrCat(name_, ": ", what, " inside the capture of queue ",
                     capture->origin, "; do it before or after the capture")));
  }
  // Frees now, or after the current capture of this thread.
  void FreeOutsideCapture(std::function<void()> free) {
    if (const std::shared_ptr<CudaCapture> capture = CaptureOfThread()) {
      CheckOutsideCapture("memory is freed").IgnoreError();
      capture->frees.push_back(std::move(free));
    } else {
      free();
    }
  }

  absl::StatusOr<void*> Allocate(size_t bytes) {
    TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("memory is allocated"));
    {
      const std::lock_guard lock(mutex_);
      ++counts_.allocations;
    }
    const ScopedCudaDevice device(*runtime_, ordinal_);
    TESSERA_RETURN_IF_ERROR(device.status());
    absl::StatusOr<void*> data = runtime_->Allocate(bytes);
    if (data.ok()) return data;
    if (absl::IsResourceExhausted(data.status())) {
      return Annotate(data.status(), absl::StrCat(name_, FreeMemory()));
    }
    return Keep(data.status(), "work before an allocation");
  }

  // A recycled or new event. The device must be current.
  absl::StatusOr<CudaRuntime::EventHandle> TakeEvent() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_events_.empty()) {
        const CudaRuntime::EventHandle event = free_events_.back();
        free_events_.pop_back();
        return event;
      }
    }
    return runtime_->CreateEvent();
  }
  void ReturnEvent(CudaRuntime::EventHandle event) {
    const std::lock_guard lock(mutex_);
    free_events_.push_back(event);
  }

  void AddQueue(std::shared_ptr<Progress> progress) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(std::move(progress));
  }
  void RemoveQueue(const std::shared_ptr<Progress>& progress) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, progress);
  }
  std::vector<std::shared_ptr<Progress>> queues() const {
    const std::lock_guard lock(mutex_);
    return queues_;
  }

 private:
  std::string FreeMemory() const {
    const absl::StatusOr<CudaMemoryUse> use = runtime_->MemoryUse();
    if (!use.ok()) return "";
    return absl::StrCat(" with ", use->free, " of ", use->total, " bytes free");
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  const int ordinal_;
  const std::string name_;

  mutable std::mutex mutex_;
  absl::Status status_;
  DeviceCounts counts_;
  std::set<std::thread::id> threads_;  // Threads that have enqueued work.
  std::thread::id last_thread_;
  std::vector<CudaRuntime::EventHandle> free_events_;
  std::vector<std::shared_ptr<Progress>> queues_;
  std::vector<std::shared_ptr<CudaCapture>> captures_;  // Not ended.
};

namespace {

class CudaDeviceMemory final : public MemoryResource {
 public:
  explicit CudaDeviceMemory(std::shared_ptr<CudaDeviceCore> core)
      : core_(std::move(core)) {}

  MemoryKind kind() const override { return MemoryKind::kDevice; }
  int device_ordinal() const override { return core_->ordinal(); }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_RETURN_IF_ERROR(CheckAlignment(alignment));
    return core_->Allocate(bytes);
  }
  void Deallocate(void* data, size_t, size_t) override {
    core_->FreeOutsideCapture([core = core_, data] {
      const ScopedCudaDevice device(core->runtime(), core->ordinal());
      core->runtime().Free(data).IgnoreError();
    });
  }

 private:
  const std::shared_ptr<CudaDeviceCore> core_;
};

class CudaStaging final : public MemoryResource {
 public:
  explicit CudaStaging(std::shared_ptr<CudaDeviceCore> core)
      : core_(std::move(core)) {}

  MemoryKind kind() const override { return MemoryKind::kPinnedHost; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_RETURN_IF_ERROR(CheckAlignment(alignment));
    TESSERA_RETURN_IF_ERROR(
        core_->CheckOutsideCapture("page-locked memory is allocated"));
    const ScopedCudaDevice device(core_->runtime(), core_->ordinal());
    TESSERA_RETURN_IF_ERROR(device.status());
    return core_->runtime().AllocateHost(bytes);
  }
  void Deallocate(void* data, size_t, size_t) override {
    core_->FreeOutsideCapture([core = core_, data] {
      const ScopedCudaDevice device(core->runtime(), core->ordinal());
      core->runtime().FreeHost(data).IgnoreError();
    });
  }

 private:
  const std::shared_ptr<CudaDeviceCore> core_;
};

class CudaEvent final : public EventState {
 public:
  // `number` is the last work of the queue before the record. `capture` is the
  // capture of the queue, or null.
  CudaEvent(std::shared_ptr<CudaDeviceCore> core, const Device* device,
            std::shared_ptr<Progress> progress, uint64_t number,
            CudaRuntime::EventHandle handle, const SourcePlace& place,
            std::shared_ptr<CudaCapture> capture)
      : core_(std::move(core)),
        device_(device),
        progress_(std::move(progress)),
        number_(number),
        handle_(handle),
        place_(place),
        capture_(std::move(capture)) {}
  ~CudaEvent() override { core_->ReturnEvent(handle_); }

  const Device* device() const override { return device_; }

  absl::StatusOr<bool> Test() override {
    TESSERA_RETURN_IF_ERROR(core_->status());
    if (IsKnown()) return true;
    TESSERA_RETURN_IF_ERROR(CheckHost("tests"));
    const absl::StatusOr<bool> happened = core_->runtime().QueryEvent(handle_);
    if (!happened.ok()) return Fail(happened.status());
    if (*happened) progress_->Finish(number_);
    return *happened;
  }

  absl::Status Wait() override {
    if (IsKnown()) return core_->status();
    TESSERA_RETURN_IF_ERROR(CheckHost("waits for"));
    core_->CountWait();
    // Also after an error, because running work still uses its memory.
    const absl::Status status = core_->runtime().SynchronizeEvent(handle_);
    if (!status.ok()) return Fail(status);
    progress_->Finish(number_);
    return core_->status();
  }

  bool IsKnown() const {
    return capture_ == nullptr && progress_->done.load() >= number_;
  }
  CudaRuntime::EventHandle handle() const { return handle_; }
  const std::shared_ptr<CudaCapture>& capture() const { return capture_; }
  const CudaRuntime& runtime() const { return core_->runtime(); }
  std::string place() const { return PlaceName(place_); }

 private:
  absl::Status CheckHost(std::string_view verb) const {
    TESSERA_RETURN_IF_ERROR(core_->CheckOutsideCapture(
        absl::StrCat("the host ", verb, " the event recorded at ", place())));
    if (capture_ == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the host ", verb, " the event recorded at ", place(),
        " in a capture, which never happens; use an event of a replay"));
  }

  absl::Status Fail(const absl::Status& error) {
    return core_->Keep(error, absl::StrCat("work of queue ", progress_->queue,
                                           " before ", PlaceName(place_)));
  }

  const std::shared_ptr<CudaDeviceCore> core_;
  const Device* const device_;
  const std::shared_ptr<Progress> progress_;
  const uint64_t number_;
  const CudaRuntime::EventHandle handle_;
  const SourcePlace place_;
  const std::shared_ptr<CudaCapture> capture_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<CudaDeviceCore> core, const Device& device,
            CudaRuntime::GraphExec exec, int64_t operations)
      : core_(std::move(core)),
        device_(device),
        exec_(exec),
        operations_(operations) {}
  ~CudaGraph() override {
    const ScopedCudaDevice device(core_->runtime(), core_->ordinal());
    core_->runtime().DestroyGraphExec(exec_).IgnoreError();
  }

  const Device& device() const override { return device_; }
  int64_t operations() const override { return operations_; }
  CudaRuntime::GraphExec exec() const { return exec_; }

 private:
  const std::shared_ptr<CudaDeviceCore> core_;
  const Device& device_;
  const CudaRuntime::GraphExec exec_;
  const int64_t operations_;
};

class CudaQueue final : public Queue {
 public:
  CudaQueue(std::shared_ptr<CudaDeviceCore> core, Device& device,
            std::string_view name, CudaRuntime::Stream stream)
      : core_(std::move(core)),
        device_(device),
        stream_(stream),
        progress_(std::make_shared<Progress>()) {
    progress_->queue = std::string(name);
    core_->AddQueue(progress_);
  }
  ~CudaQueue() override {
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    // Nobody can receive the errors any more.
    if (is_capturing()) {
      capture_
          ->Fail(absl::FailedPreconditionError(absl::StrCat(
              "queue ", name(), " was destroyed inside a capture")))
          .IgnoreError();
      if (is_origin_) EndCapture(SourcePlace::current()).status().IgnoreError();
    }
    runtime().SynchronizeStream(stream_).IgnoreError();
    runtime().DestroyStream(stream_).IgnoreError();
    progress_->Finish(progress_->enqueued.load());
    core_->RemoveQueue(progress_);
  }

  std::string_view name() const override { return progress_->queue; }
  Device& device() const override { return device_; }
  bool is_immediate() const override { return false; }
  void* native_handle() const override { return stream_; }
  void NoteEnqueued() override {
    if (!is_capturing()) ++progress_->enqueued;
  }

  absl::Status Copy(std::span<const std::byte> source,
                    std::span<std::byte> target, SourcePlace place) override {
    if (source.size() != target.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy of ", source.size(), " bytes to ", target.size(),
                       " bytes; give two ranges of one size"));
    }
    if (source.empty() || source.data() == target.data()) {
      return core_->status();
    }
    return Enqueue("copy", place, [&] {
      return runtime().CopyAsync(target.data(), source.data(), source.size(),
                                 stream_);
    });
  }

  absl::Status Fill(std::byte value, std::span<std::byte> target,
                    SourcePlace place) override {
    if (target.empty()) return core_->status();
    return Enqueue("fill", place, [&] {
      return runtime().FillAsync(target.data(), value, target.size(), stream_);
    });
  }

  absl::Status Launch(HostFunction function, SourcePlace place) override {
    if (!function.enqueues) {
      return absl::UnimplementedError(absl::StrCat(
          "\"", function.name, "\" at ", PlaceName(place),
          " is a function of the host, which cannot access the memory of ",
          core_->name(), "; give one that enqueues kernels"));
    }
    absl::StatusOr<Event> done = Event();
    TESSERA_RETURN_IF_ERROR(Enqueue(function.name, place, [&] {
      done = function.run(DeviceAddresses());
      const absl::Status launched = runtime().LastError();
      // A failed launch stops the device, because later results would be wrong.
      return absl::Status(AsWork(done.ok() ? launched : done.status()));
    }));
    return Wait(*done, place);
  }

  absl::StatusOr<Event> Record(SourcePlace place) override {
    TESSERA_RETURN_IF_ERROR(core_->status());
    const uint64_t number = progress_->enqueued.load();
    if (!is_capturing() && progress_->done.load() >= number) return Event();
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    TESSERA_RETURN_IF_ERROR(device.status());
    const absl::StatusOr<CudaRuntime::EventHandle> handle = core_->TakeEvent();
    if (!handle.ok()) return Fail(handle.status(), "record", place);
    const absl::Status status = runtime().RecordEvent(*handle, stream_);
    if (!status.ok()) {
      core_->ReturnEvent(*handle);
      return Fail(status, "record", place);
    }
    return Event(std::make_shared<CudaEvent>(
        core_, &device_, progress_, number, *handle, place,
        is_capturing() ? capture_ : nullptr));
  }

  absl::Status Wait(const Event& given, SourcePlace place) override {
    TESSERA_RETURN_IF_ERROR(core_->status());
    TESSERA_ASSIGN_OR_RETURN(const Event event, given.Enqueued());
    if (event.state() == nullptr) return absl::OkStatus();
    // Streams can wait for events of all devices of the process.
    const auto* const state =
        dynamic_cast<const CudaEvent*>(event.state().get());
    if (state == nullptr || &state->runtime() != &runtime()) {
      return WaitOfHost(event, place);
    }
    if (state->IsKnown()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(JoinCapture(*state, place));
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    TESSERA_RETURN_IF_ERROR(device.status());
    const absl::Status status = runtime().WaitEvent(stream_, state->handle());
    if (!status.ok()) return Fail(status, "wait", place);
    NoteEnqueued();  // Events of this queue now also cover the other's work.
    return absl::OkStatus();
  }

  absl::Status Synchronize(SourcePlace place) override {
    const uint64_t number = progress_->enqueued.load();
    if (is_capturing() || progress_->done.load() < number) {
      TESSERA_RETURN_IF_ERROR(core_->CheckOutsideCapture(absl::StrCat(
          "the host waits for queue ", name(), " at ", PlaceName(place))));
    }
    if (progress_->done.load() >= number) return core_->status();
    core_->CountWait();
    const absl::Status status = runtime().SynchronizeStream(stream_);
    if (!status.ok()) return Fail(status, "work", place);
    progress_->Finish(number);
    return core_->status();
  }

  absl::Status BeginCapture(SourcePlace place) override {
    TESSERA_RETURN_IF_ERROR(core_->status());
    TESSERA_RETURN_IF_ERROR(core_->CheckOutsideCapture(
        absl::StrCat("a capture begins at ", PlaceName(place))));
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    TESSERA_RETURN_IF_ERROR(device.status());
    TESSERA_RETURN_IF_ERROR(
        runtime().BeginCapture(stream_),
        Annotate(_, absl::StrCat(core_->name(), ": queue ", name())));
    capture_ = std::make_shared<CudaCapture>(name());
    is_origin_ = true;
    core_->BeginCapture(capture_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(
      SourcePlace place) override {
    if (!is_capturing() || !is_origin_) {
      return absl::FailedPreconditionError(
          absl::StrCat("queue ", name(), " ends a capture at ",
                       PlaceName(place), " that it has not begun"));
    }
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    const std::shared_ptr<CudaCapture> capture = std::exchange(capture_, {});
    is_origin_ = false;
    const absl::StatusOr<CudaRuntime::Graph> graph =
        runtime().EndCapture(stream_);
    core_->EndCapture(capture);
    // Reports the first error inside instead of the failure to end the capture.
    absl::Status status = capture->status;
    status.Update(Annotate(graph.status(), EndError(*capture, place)));
    absl::StatusOr<CudaRuntime::GraphExec> exec = nullptr;
    if (graph.ok()) {
      if (status.ok()) exec = runtime().InstantiateGraph(*graph);
      runtime().DestroyGraph(*graph).IgnoreError();
    }
    status.Update(Annotate(exec.status(), EndError(*capture, place)));
    TESSERA_RETURN_IF_ERROR(status);
    return std::make_unique<CudaGraph>(core_, device_, *exec,
                                       capture->operations);
  }

  absl::Status Replay(DeviceGraph& graph, SourcePlace place) override {
    if (&graph.device() != &device_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a graph of device ", graph.device().name(),
                       " for queue ", name(), " of ", core_->name(), " at ",
                       PlaceName(place), "; replay it on its own device"));
    }
    if (is_capturing()) {
      return core_->CheckOutsideCapture(
          absl::StrCat("a graph is replayed at ", PlaceName(place)));
    }
    return Enqueue("replay", place, [&] {
      return runtime().LaunchGraph(static_cast<CudaGraph&>(graph).exec(),
                                   stream_);
    });
  }

 private:
  CudaRuntime& runtime() const { return core_->runtime(); }

  bool is_capturing() const {
    return capture_ != nullptr && capture_->is_active.load();
  }

  std::string EndError(const CudaCapture& capture,
                       const SourcePlace& place) const {
    std::string text =
        absl::StrCat("capture of queue ", name(), " at ", PlaceName(place));
    if (capture.joined.empty()) return text;
    return absl::StrCat(text, ", which ", capture.JoinedQueues(),
                        " joined; queue ", name(),
                        " should wait for an event that each of them records "
                        "after its last work");
  }

  // Adds the queue to the capture in which the event was recorded.
  absl::Status JoinCapture(const CudaEvent& event, const SourcePlace& place) {
    const std::shared_ptr<CudaCapture>& of_event = event.capture();
    const std::shared_ptr<CudaCapture> own =
        is_capturing() ? capture_ : nullptr;
    if (of_event == own) return absl::OkStatus();
    const std::string wait =
        absl::StrCat("queue ", name(), " waits at ", PlaceName(place),
                     " for the event recorded at ", event.place());
    if (own != nullptr) {
      return own->Fail(absl::FailedPreconditionError(absl::StrCat(
          wait, ", which is not part of the capture of queue ", own->origin,
          "; wait before the capture, and let the host know that it has "
          "happened")));
    }
    if (!of_event->is_active.load() ||
        of_event->thread != std::this_thread::get_id()) {
      return absl::FailedPreconditionError(absl::StrCat(
          wait, " in a capture that has ended or is another thread's"));
    }
    capture_ = of_event;
    is_origin_ = false;
    capture_->joined.push_back(std::string(name()));
    return absl::OkStatus();
  }

  static absl::Status AsWork(const absl::Status& status) {
    return absl::IsInvalidArgument(status)
               ? absl::InternalError(status.message())
               : status;
  }

  absl::Status Fail(const absl::Status& error, std::string_view operation,
                    const SourcePlace& place) {
    const std::string what =
        absl::StrCat("\"", operation, "\" on queue ", name(), " at ",
                     PlaceName(place), ", or work before it");
    // Captured work has not begun.
    return is_capturing() ? capture_->Fail(Annotate(error, what))
                          : core_->Keep(error, what);
  }

  // Invalid arguments have no effect; other errors stop the device's work.
  template <typename Function>
  absl::Status Enqueue(std::string_view operation, const SourcePlace& place,
                       const Function& function) {
    TESSERA_RETURN_IF_ERROR(core_->status());
    const ScopedCudaDevice device(runtime(), core_->ordinal());
    TESSERA_RETURN_IF_ERROR(device.status());
    // Counts before the call, because part of the work may be running when it
    // fails.
    NoteEnqueued();
    const absl::Status status = function();
    if (absl::IsInvalidArgument(status)) {
      return Annotate(
          status, absl::StrCat("\"", operation, "\" at ", PlaceName(place)));
    }
    if (!status.ok()) return Fail(status, operation, place);
    if (is_capturing()) {
      ++capture_->operations;
    } else {
      core_->CountOperation();
    }
    return absl::OkStatus();
  }

  absl::Status WaitOfHost(const Event& event, const SourcePlace& place) {
    TESSERA_ASSIGN_OR_RETURN(const bool happened, event.Test());
    if (happened) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(core_->CheckOutsideCapture(
        absl::StrCat("the host waits at ", PlaceName(place))));
    core_->CountWait();
    return event.Wait();
  }

  const std::shared_ptr<CudaDeviceCore> core_;
  Device& device_;
  const CudaRuntime::Stream stream_;
  const std::shared_ptr<Progress> progress_;
  std::shared_ptr<CudaCapture> capture_;  // The last one, or null.
  bool is_origin_ = false;                // True if it began the capture.
};

absl::Status CheckOrdinal(CudaRuntime& runtime, int ordinal) {
  TESSERA_ASSIGN_OR_RETURN(const int count, runtime.DeviceCount());
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("GPU ", ordinal, "; expected 0 to ", count - 1));
}

// "13.0"
std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status CheckUsable(int ordinal, const CudaProperties& properties) {
  if (properties.major >= kLeastComputeMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "GPU ", ordinal, " (", properties.name, ", compute capability ",
      properties.major, ".", properties.minor,
      ") is too old: ", kLeastComputeMajor, ".0 or newer is needed"));
}

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<CudaDeviceCore> core)
    : core_(std::move(core)) {}

CudaDevice::~CudaDevice() = default;

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Create(
    const CudaDeviceOptions& options) {
  std::shared_ptr<CudaRuntime> runtime = options.runtime;
  if (runtime == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(runtime, NativeCudaRuntime());
  }
  TESSERA_RETURN_IF_ERROR(CheckOrdinal(*runtime, options.ordinal));
  const ScopedCudaDevice current(*runtime, options.ordinal);
  TESSERA_RETURN_IF_ERROR(current.status());
  std::shared_ptr<CudaDevice> device(new CudaDevice(
      std::make_shared<CudaDeviceCore>(std::move(runtime), options.ordinal)));
  TESSERA_RETURN_IF_ERROR(device->TakeMemory(options.arena_bytes));
  return device;
}

absl::Status CudaDevice::TakeMemory(size_t arena_bytes) {
  memory_ = std::make_shared<CudaDeviceMemory>(core_);
  if (arena_bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(memory_, Arena::Create(memory_, arena_bytes));
  }
  // Locking pages takes milliseconds.
  TESSERA_ASSIGN_OR_RETURN(
      staging_memory_, Arena::Create(std::make_shared<CudaStaging>(core_), 0));
  return absl::OkStatus();
}

std::string_view CudaDevice::name() const { return core_->name(); }

int CudaDevice::ordinal() const { return core_->ordinal(); }

absl::StatusOr<std::unique_ptr<Queue>> CudaDevice::CreateQueue(
    std::string_view name) {
  TESSERA_RETURN_IF_ERROR(core_->status());
  const ScopedCudaDevice device(core_->runtime(), core_->ordinal());
  TESSERA_RETURN_IF_ERROR(device.status());
  TESSERA_ASSIGN_OR_RETURN(const CudaRuntime::Stream stream,
                           core_->runtime().CreateStream(),
                           Annotate(_, absl::StrCat("queue ", name)));
  return std::make_unique<CudaQueue>(core_, *this, name, stream);
}

absl::Status CudaDevice::Synchronize(SourcePlace place) {
  bool all_done = true;
  std::vector<std::pair<std::shared_ptr<Progress>, uint64_t>> enqueued;
  for (const std::shared_ptr<Progress>& queue : core_->queues()) {
    const uint64_t number = queue->enqueued.load();
    all_done = all_done && queue->done.load() >= number;
    enqueued.emplace_back(queue, number);
  }
  TESSERA_RETURN_IF_ERROR(core_->CheckOutsideCapture(
      absl::StrCat("the host waits for the device at ", PlaceName(place))));
  if (all_done) return core_->status();
  core_->CountWait();
  const ScopedCudaDevice device(core_->runtime(), core_->ordinal());
  TESSERA_RETURN_IF_ERROR(device.status());
  const absl::Status status = core_->runtime().SynchronizeDevice();
  if (!status.ok()) {
    return core_->Keep(status, absl::StrCat("work before ", PlaceName(place)));
  }
  for (const auto& [queue, number] : enqueued) queue->Finish(number);
  return core_->status();
}

DeviceCounts CudaDevice::counts() const { return core_->counts(); }

absl::StatusOr<CudaMemoryUse> CudaDevice::MemoryUse() const {
  const ScopedCudaDevice device(core_->runtime(), core_->ordinal());
  TESSERA_RETURN_IF_ERROR(device.status());
  return core_->runtime().MemoryUse();
}

absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(
    std::shared_ptr<CudaRuntime> runtime) {
  if (runtime == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(runtime, NativeCudaRuntime());
  }
  TESSERA_ASSIGN_OR_RETURN(const CudaVersions versions, runtime->Versions());
  if (versions.driver == 0) {
    return absl::NotFoundError("this machine has no NVIDIA driver");
  }
  // A driver supports every runtime of its major version.
  if (versions.driver / 1000 < versions.runtime / 1000) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver supports CUDA ", VersionName(versions.driver),
        ", and this program needs ", VersionName(versions.runtime),
        "; install a newer driver"));
  }
  const absl::StatusOr<int> count = runtime->DeviceCount();
  if (absl::IsUnavailable(count.status())) {
    return absl::NotFoundError(count.status().message());
  }
  TESSERA_RETURN_IF_ERROR(count.status());
  std::vector<CudaDeviceInfo> devices;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    TESSERA_ASSIGN_OR_RETURN(CudaProperties properties,
                             runtime->Properties(ordinal));
    const absl::Status usable = CheckUsable(ordinal, properties);
    devices.push_back({ordinal, std::move(properties), usable});
  }
  return devices;
}

}  // namespace tessera
