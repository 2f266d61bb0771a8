// Devices, queues and events: asynchronous work on tensors in device memory.
//
//   Queue& queue = ...;                       // Work in order, on a device.
//   TESSERA_RETURN_IF_ERROR(queue.Copy(host_bytes, device_bytes));
//   TESSERA_ASSIGN_OR_RETURN(Event uploaded, queue.Record());
//   TESSERA_RETURN_IF_ERROR(compute.Wait(uploaded));   // Orders two queues.
//   TESSERA_RETURN_IF_ERROR(uploaded.Wait());          // The host waits.
//
// A call that enqueues work returns before the work is done. Operations on one
// queue execute in the order of the calls. Operations on different queues are
// ordered only by events: before a queue uses memory that another queue has
// used, it must wait for an event of that queue. The host may read or reuse
// memory only after it has waited for the work that uses it.
//
//   device          its queues                          header
//   HostDevice      execute work when it is enqueued    host_device.h
//   EmulatedDevice  execute work late, in any order     emulated_device.h
//                   that events allow, on memory that
//                   the host cannot access, and report
//                   missing waits
//   CudaDevice      are streams of a GPU                cuda_device.h
//
// A repeated sequence of operations is captured once and then replayed by one
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

// The source location of a call, for error messages. Stands in for
// std::source_location, which Clang supports only from version 16.
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

// The implementation of an event, either of a device or of host work such as a
// message.
class EventState {
 public:
  virtual ~EventState() = default;

  // The device that orders its queues by this event; null for host work.
  virtual const Device* device() const { return nullptr; }
  // Returns true if the event has happened, or the error of earlier work.
  virtual absl::StatusOr<bool> Test() = 0;
  virtual absl::Status Wait() = 0;
  // See Event::Enqueued. Null stands for this event itself.
  virtual absl::StatusOr<std::shared_ptr<EventState>> Enqueued() {
    return nullptr;
  }
};

// A point in the work of a queue. The event happens when all earlier work is
// done. Copies refer to the same event.
class Event {
 public:
  // An event that has already happened.
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state)
      : state_(std::move(state)) {}

  // Returns true if the event has happened, or the error of earlier work.
  absl::StatusOr<bool> Test() const {
    return state_ == nullptr ? absl::StatusOr<bool>(true) : state_->Test();
  }
  // Blocks the host until the event happens; returns the error of earlier work.
  absl::Status Wait() const {
    return state_ == nullptr ? absl::OkStatus() : state_->Wait();
  }

  // Returns this event in the form that its device can wait for. Work that
  // other ranks must join gets a device event only after all of them have
  // joined: the host waits for the others to join, not for the work.
  // Queue::Wait calls this for every event.
  absl::StatusOr<Event> Enqueued() const {
    if (state_ == nullptr) return Event();
    absl::StatusOr<std::shared_ptr<EventState>> enqueued = state_->Enqueued();
    if (!enqueued.ok()) return enqueued.status();
    return *enqueued == nullptr ? *this : Event(*std::move(enqueued));
  }

  // Null if the event had happened from the start.
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

// The bytes of a view from its lowest to its highest element.
MemoryAccess ReadsFrom(const ConstTensorView& view);
MemoryAccess WritesTo(const TensorView& view);
inline MemoryAccess ReadsFrom(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size(), false};
}
inline MemoryAccess WritesTo(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size(), true};
}

// Translates device addresses into addresses that host functions can use. The
// default leaves addresses unchanged.
class DeviceAddresses {
 public:
  DeviceAddresses() = default;
  // Adds `distance` bytes to addresses in [begin, begin + size).
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

// A host function that executes work for a device, or enqueues it natively. It
// may access only the memory that it declares, at the addresses that it is
// given.
struct HostFunction {
  // Used in error messages. Must stay valid; usually a literal.
  std::string_view name = "";
  absl::InlinedVector<MemoryAccess, 6> accesses = {};
  // The work is done when the returned event happens; its memory is in use
  // until then. An error stops the work of all queues of the device.
  absl::AnyInvocable<absl::StatusOr<Event>(const DeviceAddresses&)> run =
      nullptr;
  // True if `run` only enqueues work, such as CUDA kernels, on
  // Queue::native_handle(). A queue that has a handle calls it immediately. If
  // the handle is null (emulated kernels), `run` executes the work itself like
  // any other function: once, or, if it was captured, in each replay.
  bool enqueues = false;
};

// Captured work, as Queue::EndCapture returns it: operations with fixed
// addresses, arguments and order. The memory that they use must stay allocated
// during replays. A graph may be destroyed during a replay, and before its
// device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  virtual const Device& device() const = 0;
  // The number of copies, fills and functions in one replay.
  virtual int64_t operations() const = 0;
};

// A sequence of work on a device. A call fails if its arguments are invalid or
// earlier work has failed. If the work itself fails, the next wait for it
// returns the error, and so do all later calls. The destructor waits for the
// work.
class Queue {
 public:
  virtual ~Queue() = default;

  virtual std::string_view name() const = 0;
  virtual Device& device() const = 0;
  // True if work is done when the call that enqueues it returns.
  virtual bool is_immediate() const = 0;
  // The cudaStream_t of a CUDA device's queue; null on other devices.
  virtual void* native_handle() const { return nullptr; }
  // Call this before enqueuing work on native_handle() without Launch.
  // Otherwise events and waits of this queue may ignore that work.
  virtual void NoteEnqueued() {}

  // Copies `source` to `target`, which have equal sizes and lie in device or
  // host memory. Host memory should be the device's staging memory, and must
  // stay valid and unchanged until the copy is done.
  virtual absl::Status Copy(std::span<const std::byte> source,
                            std::span<std::byte> target,
                            SourcePlace place = SourcePlace::current()) = 0;
  // Sets every byte of device memory to `value`.
  virtual absl::Status Fill(std::byte value, std::span<std::byte> target,
                            SourcePlace place = SourcePlace::current()) = 0;
  // Returns Unimplemented if the host cannot execute this device's work and the
  // function does not enqueue it.
  virtual absl::Status Launch(HostFunction function,
                              SourcePlace place = SourcePlace::current()) = 0;

  // Returns an event that happens when all work enqueued so far is done.
  virtual absl::StatusOr<Event> Record(
      SourcePlace place = SourcePlace::current()) = 0;
  // Work enqueued later begins after the event. For an event that does not
  // belong to the device, the host waits in this call.
  virtual absl::Status Wait(const Event& event,
                            SourcePlace place = SourcePlace::current()) = 0;
  // Blocks the host until all work enqueued so far is done.
  virtual absl::Status Synchronize(
      SourcePlace place = SourcePlace::current()) = 0;

  // Until EndCapture, records the work of this queue instead of executing it.
  // Another queue of the device joins the capture when it waits for an event of
  // the capture (fork); this queue must wait for the other before the end
  // (join). One thread makes all calls of a capture. The following fail with
  // FailedPrecondition inside a capture, and EndCapture then returns the first
  // such error: host waits, allocating and freeing device memory, host access
  // to memory that the capture uses, a wait for outside work that is not known
  // to be done, and a replay. Returns Unimplemented if the device does not
  // support capture, for example because its work is immediate, and
  // FailedPrecondition inside a capture.
  virtual absl::Status BeginCapture(SourcePlace place = SourcePlace::current());
  // Ends the capture, even if it fails: its queues then execute later work
  // again. Returns the first error of the calls inside, FailedPrecondition if a
  // queue was not joined or no capture was begun, and ResourceExhausted if the
  // device has too little memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(
      SourcePlace place = SourcePlace::current());
  // Enqueues the work of a graph as one operation, on any queue of its device.
  // The replay uses the addresses and host values of the capture; only the
  // contents of memory may differ. Returns InvalidArgument if the graph belongs
  // to another device.
  virtual absl::Status Replay(DeviceGraph& graph,
                              SourcePlace place = SourcePlace::current());
};

// Captures the work that `enqueue` enqueues on `queue` and on queues that join.
// If `enqueue` fails, ends the capture and returns its error.
absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
    Queue& queue, absl::FunctionRef<absl::Status()> enqueue,
    SourcePlace place = SourcePlace::current());

struct DeviceCounts {
  // Copies, fills, functions and replays that were enqueued.
  int64_t operations = 0;
  // Waits for work that was not known to be done, by threads that have enqueued
  // work. Threads that only wait, such as those of memory tiers, do not count.
  int64_t host_waits = 0;
  int64_t allocations = 0;  // Device memory only.
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "emulated", "cuda:0".
  virtual std::string_view name() const = 0;
  // Memory that only the device can access, except for a HostDevice.
  virtual std::shared_ptr<MemoryResource> memory() const = 0;
  // Host memory that the device copies to and from asynchronously.
  virtual std::shared_ptr<MemoryResource> staging_memory() const = 0;

  // `name` appears in errors and traces. The device must outlive its queues.
  virtual absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) = 0;
  // Blocks the host until the work of all queues is done.
  virtual absl::Status Synchronize(
      SourcePlace place = SourcePlace::current()) = 0;

  // Declares that the host accesses memory that queues use. A device that
  // checks accesses returns an error if the host has not waited for the work on
  // that memory.
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
