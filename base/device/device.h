// Devices: where tensors live and work on them is done, asynchronously.
//
//   Queue& queue = ...;                       // Work in order, on a device.
//   TESSERA_RETURN_IF_ERROR(queue.Copy(host_bytes, device_bytes));
//   TESSERA_ASSIGN_OR_RETURN(Event uploaded, queue.Record());
//   TESSERA_RETURN_IF_ERROR(compute.Wait(uploaded));   // Orders two queues.
//   TESSERA_RETURN_IF_ERROR(uploaded.Wait());          // The host waits.
//
// A call that enqueues work returns before the work is done. Work on one queue
// is done in the order of the calls. Work on two queues is ordered only by
// events: whoever uses memory that another queue has used makes its own queue
// wait for an event of that queue. The host may read or reuse memory only after
// it has waited for the work that uses it.
//
//   device        a queue                             header
//   HostDevice    does work when it is enqueued       host_device.h
//   emulated      late, in any order that events      emulated_device.h
//                 allow, on memory that the host
//                 cannot touch; finds missing waits
//   CudaDevice    a stream of a GPU                   cuda_device.h
//
// Work that is the same every time is captured once and then replayed by one
// call, so that small operations do not wait for the host (CUDA graphs):
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceGraph> graph,
//                            Capture(queue, [&] { return EnqueueLayers(); }));
//   TESSERA_RETURN_IF_ERROR(queue.Copy(next_input, input));
//   TESSERA_RETURN_IF_ERROR(queue.Replay(*graph));
//
// Threads: devices and events are thread-safe; a queue is used by one thread at
// a time.
#ifndef TESSERA_BASE_DEVICE_DEVICE_H_
#define TESSERA_BASE_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera {

class Device;

// The place in the source of a call, for errors: std::source_location, which
// Clang has only from version 16 on.
class SourcePlace {
 public:
  SourcePlace() = default;
  static constexpr SourcePlace current(
      const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE(),
      const char* function = __builtin_FUNCTION()) {
    SourcePlace place;
    place.file_ = file;
    place.line_ = line;
    place.function_ = function;
    return place;
  }

  const char* file_name() const { return file_; }
  uint32_t line() const { return line_; }
  const char* function_name() const { return function_; }

 private:
  const char* file_ = "";
  uint32_t line_ = 0;
  const char* function_ = "";
};

// The implementation of an event: of a device, or of work of the host such as
// a message.
class EventState {
 public:
  virtual ~EventState() = default;

  // The device that orders its queues by this event; null: work of the host.
  virtual const Device* device() const { return nullptr; }
  // Returns true if it has happened, or the error of the work before it.
  virtual absl::StatusOr<bool> Test() = 0;
  virtual absl::Status Wait() = 0;
  // See Event::Enqueued; null: this event itself.
  virtual absl::StatusOr<std::shared_ptr<EventState>> Enqueued() {
    return nullptr;
  }
};

// A point in the work of a queue, which happens when all work before it is
// done. Copies refer to the same event.
class Event {
 public:
  // Has happened.
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state)
      : state_(std::move(state)) {}

  // Returns true if it has happened, or the error of the work before it.
  absl::StatusOr<bool> Test() const {
    return state_ == nullptr ? absl::StatusOr<bool>(true) : state_->Test();
  }
  // The host waits; returns the error of the work before it.
  absl::Status Wait() const {
    return state_ == nullptr ? absl::OkStatus() : state_->Wait();
  }

  // This event as its device knows it. An event of work that other ranks have
  // to join is a device's only when all have: the host waits for that, not for
  // the work. Queue::Wait does it for every event.
  absl::StatusOr<Event> Enqueued() const {
    if (state_ == nullptr) return Event();
    absl::StatusOr<std::shared_ptr<EventState>> enqueued = state_->Enqueued();
    if (!enqueued.ok()) return enqueued.status();
    return *enqueued == nullptr ? *this : Event(*std::move(enqueued));
  }

  // Null if it has happened from the start.
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

// Bytes that an operation reads or writes.
struct MemoryAccess {
  const std::byte* data = nullptr;
  size_t size = 0;
  bool writes = false;
};

// The accesses of the elements of a view, from the lowest to the highest.
MemoryAccess ReadsFrom(const ConstTensorView& view);
MemoryAccess WritesTo(const TensorView& view);
inline MemoryAccess ReadsFrom(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size(), false};
}
inline MemoryAccess WritesTo(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size(), true};
}

// Translates a device's addresses for functions of the host. The default is the
// address itself.
class DeviceAddresses {
 public:
  DeviceAddresses() = default;
  // Addresses [begin, begin + size) are found `distance` bytes further.
  DeviceAddresses(const std::byte* begin, size_t size, ptrdiff_t distance)
      : begin_(begin), size_(size), distance_(distance) {}

  template <typename T>
  T* operator()(T* data) const {
    const auto* const at = reinterpret_cast<const std::byte*>(data);
    if (at < begin_ || at >= begin_ + size_) return data;
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(data) +
                                static_cast<uintptr_t>(distance_));
  }
  template <typename T>
  std::span<T> operator()(std::span<T> data) const {
    return {(*this)(data.data()), data.size()};
  }
  // The same elements in host memory.
  template <typename Byte>
  BasicTensorView<Byte> operator()(const BasicTensorView<Byte>& view) const {
    return view.MovedTo((*this)(view.data()), MemoryKind::kHost);
  }
  template <typename T>
  std::optional<T> operator()(const std::optional<T>& operand) const {
    return operand.has_value() ? std::optional<T>((*this)(*operand))
                               : std::nullopt;
  }

 private:
  const std::byte* begin_ = nullptr;
  size_t size_ = 0;
  ptrdiff_t distance_ = 0;
};

// A function of the host that does a device's work, or enqueues it natively. It
// may access only the memory that it declares, at the addresses that it is
// given.
struct HostFunction {
  // For errors. The caller keeps it valid: mostly a literal.
  std::string_view name = "";
  absl::InlinedVector<MemoryAccess, 6> accesses = {};
  // The work is done when the returned event happens; until then its memory is
  // in use. An error ends the work of all queues of the device.
  absl::AnyInvocable<absl::StatusOr<Event>(const DeviceAddresses&)> run =
      nullptr;
  // True if `run` only enqueues work on Queue::native_handle(), such as CUDA
  // kernels: a queue that has a handle calls it at once. Where the handle is
  // null, `run` does the work itself (emulated kernels), like any other: once,
  // or, if it was captured, in each replay.
  bool enqueues = false;
};

// Work that Queue::EndCapture has returned: operations with their addresses,
// their arguments and their order, fixed. Its memory stays allocated while it
// is replayed. It may be destroyed while a replay is under way, and before its
// device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  virtual const Device& device() const = 0;
  // Copies, fills and functions in one replay.
  virtual int64_t operations() const = 0;
};

// Ordered work on a device. Errors of a call are those of its arguments, or
// errors of earlier work. An error of the work itself is returned by the next
// wait for it, and by all calls after that. The destructor waits for the work.
class Queue {
 public:
  virtual ~Queue() = default;

  virtual std::string_view name() const = 0;
  virtual Device& device() const = 0;
  // True if work is done when the call that enqueues it returns.
  virtual bool is_immediate() const = 0;
  // The cudaStream_t of a CUDA device's queue; null on other devices.
  virtual void* native_handle() const { return nullptr; }

  // target = source, of equal sizes, in memory of the device or of the host.
  // Host memory should be the device's staging memory, and must stay valid and
  // unchanged until the copy is done.
  virtual absl::Status Copy(std::span<const std::byte> source,
                            std::span<std::byte> target,
                            SourcePlace place = SourcePlace::current()) = 0;
  // Sets every byte of device memory to `value`.
  virtual absl::Status Fill(std::byte value, std::span<std::byte> target,
                            SourcePlace place = SourcePlace::current()) = 0;
  // Unimplemented if the host cannot do this device's work and the function
  // does not enqueue it.
  virtual absl::Status Launch(HostFunction function,
                              SourcePlace place = SourcePlace::current()) = 0;

  // Happens when all work enqueued so far is done.
  virtual absl::StatusOr<Event> Record(
      SourcePlace place = SourcePlace::current()) = 0;
  // Work enqueued later begins after the event. The host waits for an event
  // that is not the device's.
  virtual absl::Status Wait(const Event& event,
                            SourcePlace place = SourcePlace::current()) = 0;
  // The host waits until all work enqueued so far is done.
  virtual absl::Status Synchronize(
      SourcePlace place = SourcePlace::current()) = 0;

  // Until EndCapture, work of this queue is recorded and not done. Another
  // queue of the device joins the capture when it waits for an event of it
  // (fork), and must be waited for by this queue before the end (join). One
  // thread makes all calls of a capture. Inside it these are
  // FailedPrecondition, and EndCapture then returns the first of them: a wait
  // of the host, allocating and freeing device memory, the host's access to
  // memory that the capture uses, a wait for work outside that is not known to
  // be done, and a replay. Unimplemented if the device captures nothing, as one
  // whose work is immediate; FailedPrecondition inside a capture.
  virtual absl::Status BeginCapture(SourcePlace place = SourcePlace::current());
  // Ends the capture in any case: all its queues do later work again. Errors
  // are those of the calls inside, FailedPrecondition if a queue was not joined
  // or no capture was begun, and ResourceExhausted if the device has no room.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(
      SourcePlace place = SourcePlace::current());
  // Enqueues the work of a graph as one operation, on any queue of its device.
  // It reads and writes the memory that was captured, with the values that the
  // host passed then; only contents of memory change. InvalidArgument if the
  // graph is another device's.
  virtual absl::Status Replay(DeviceGraph& graph,
                              SourcePlace place = SourcePlace::current());
};

// Captures what `enqueue` enqueues on `queue` and on queues that join. Ends the
// capture if `enqueue` fails too, and returns its error.
absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
    Queue& queue, absl::FunctionRef<absl::Status()> enqueue,
    SourcePlace place = SourcePlace::current());

struct DeviceCounts {
  // Enqueued: copies, fills, functions and replays.
  int64_t operations = 0;
  // Waits for work that was not known to be done, of threads that have enqueued
  // work; not of threads that only wait, as those of tiers.
  int64_t host_waits = 0;
  int64_t allocations = 0;  // Of device memory.
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "emulated", "cuda:0".
  virtual std::string_view name() const = 0;
  // Memory that only the device can access, except for a HostDevice.
  virtual std::shared_ptr<MemoryResource> memory() const = 0;
  // Host memory from and to which the device copies asynchronously.
  virtual std::shared_ptr<MemoryResource> staging_memory() const = 0;

  // `name` is for errors and traces. The device outlives its queues.
  virtual absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) = 0;
  // The host waits for the work of all queues.
  virtual absl::Status Synchronize(
      SourcePlace place = SourcePlace::current()) = 0;

  // Declares that the host accesses memory which queues use. An error if a
  // device that checks its work finds that the host has not waited for it.
  virtual absl::Status HostAccess(const MemoryAccess& access,
                                  std::string_view what,
                                  SourcePlace place = SourcePlace::current());

  virtual DeviceCounts counts() const { return {}; }
};

inline std::ostream& operator<<(std::ostream& os, const Device& device) {
  return os << device.name();
}

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_DEVICE_H_
