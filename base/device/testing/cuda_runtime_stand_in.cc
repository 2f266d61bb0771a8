#include "base/device/testing/cuda_runtime_stand_in.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The delay before work begins on an idle stream.
constexpr auto kDelay = std::chrono::microseconds(20);

absl::Status InvalidValue(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": cudaErrorInvalidValue: invalid argument"));
}

absl::Status NotInCapture(std::string_view what, std::string_view error) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", error));
}

}  // namespace

CudaRuntimeStandIn::CudaRuntimeStandIn(StandInOptions options)
    : options_(std::move(options)) {}

CudaRuntimeStandIn::~CudaRuntimeStandIn() {
  for (const auto& [data, device] : memory_) std::free(data);
  for (void* const data : host_memory_) std::free(data);
}

void CudaRuntimeStandIn::LaunchKernel(void* stream,
                                      std::function<void()> kernel) {
  const std::lock_guard lock(mutex_);
  if (!Check(stream).ok()) return;
  Enqueue(stream, {.run = std::move(kernel), .after = {}, .makes = {}});
}

void CudaRuntimeStandIn::FailLaunch(absl::Status error) {
  const std::lock_guard lock(mutex_);
  launch_error_ = std::move(error);
}

void CudaRuntimeStandIn::Poison(absl::Status error) {
  const std::lock_guard lock(mutex_);
  poison_ = std::move(error);
  changed_.notify_all();
}

void CudaRuntimeStandIn::Pause() {
  const std::lock_guard lock(mutex_);
  is_paused_ = true;
}

void CudaRuntimeStandIn::Resume() {
  const std::lock_guard lock(mutex_);
  is_paused_ = false;
  changed_.notify_all();
}

CudaRuntimeStandIn::Counts CudaRuntimeStandIn::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = {.streams = static_cast<int64_t>(streams_.size()),
                   .events = static_cast<int64_t>(events_.size()),
                   .device_bytes = 0,
                   .host_allocations = host_allocations_,
                   .graphs = static_cast<int64_t>(graphs_.size())};
  for (const auto& [data, block] : memory_) {
    counts.device_bytes += static_cast<int64_t>(block.second);
  }
  return counts;
}

absl::StatusOr<CudaVersions> CudaRuntimeStandIn::Versions() {
  return options_.versions;
}

absl::StatusOr<int> CudaRuntimeStandIn::DeviceCount() {
  if (options_.versions.driver < options_.versions.runtime) {
    return absl::UnavailableError(
        "count of CUDA devices: cudaErrorInsufficientDriver: CUDA driver "
        "version is insufficient for CUDA runtime version");
  }
  if (options_.devices.empty()) {
    return absl::UnavailableError(
        "count of CUDA devices: cudaErrorNoDevice: no CUDA-capable device is "
        "detected");
  }
  return static_cast<int>(options_.devices.size());
}

absl::StatusOr<CudaProperties> CudaRuntimeStandIn::Properties(int ordinal) {
  TESSERA_ASSIGN_OR_RETURN(const int count, DeviceCount());
  if (ordinal < 0 || ordinal >= count) return InvalidValue("properties");
  return options_.devices[static_cast<size_t>(ordinal)];
}

bool CudaRuntimeStandIn::HasContext(int ordinal) {
  const std::lock_guard lock(mutex_);
  return contexts_.contains(ordinal);
}

absl::StatusOr<int> CudaRuntimeStandIn::CurrentDevice() {
  TESSERA_RETURN_IF_ERROR(DeviceCount().status());
  const std::lock_guard lock(mutex_);
  return current_[std::this_thread::get_id()];
}

absl::Status CudaRuntimeStandIn::SetCurrentDevice(int ordinal) {
  TESSERA_RETURN_IF_ERROR(Properties(ordinal).status());
  const std::lock_guard lock(mutex_);
  current_[std::this_thread::get_id()] = ordinal;
  contexts_.insert(ordinal);
  return absl::OkStatus();
}

absl::StatusOr<CudaMemoryUse> CudaRuntimeStandIn::MemoryUse() {
  TESSERA_ASSIGN_OR_RETURN(const int ordinal, CurrentDevice());
  TESSERA_ASSIGN_OR_RETURN(const CudaProperties properties,
                           Properties(ordinal));
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  contexts_.insert(ordinal);
  CudaMemoryUse use = {properties.total_bytes, properties.total_bytes};
  for (const auto& [data, block] : memory_) {
    if (block.first == ordinal) use.free -= static_cast<int64_t>(block.second);
  }
  return use;
}

absl::StatusOr<void*> CudaRuntimeStandIn::Allocate(size_t bytes) {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("allocation of device memory"));
  TESSERA_ASSIGN_OR_RETURN(const CudaMemoryUse use, MemoryUse());
  TESSERA_ASSIGN_OR_RETURN(const int ordinal, CurrentDevice());
  const size_t rounded = (std::min(bytes, size_t{1} << 60) + 255) / 256 * 256;
  if (rounded > static_cast<size_t>(use.free)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocation of ", bytes,
                     " bytes of device memory: cudaErrorMemoryAllocation: out "
                     "of memory"));
  }
  void* const data = std::aligned_alloc(256, rounded);
  if (data == nullptr) return absl::ResourceExhaustedError("no host memory");
  std::memset(data, 0xFF, rounded);
  const std::lock_guard lock(mutex_);
  memory_[data] = {ordinal, rounded};
  return data;
}

absl::Status CudaRuntimeStandIn::Free(void* data) {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("free of device memory"));
  // Synchronises like cudaFree.
  TESSERA_RETURN_IF_ERROR(SynchronizeDevice());
  const std::lock_guard lock(mutex_);
  if (memory_.erase(data) == 0) return InvalidValue("free of device memory");
  std::free(data);
  return absl::OkStatus();
}

absl::StatusOr<void*> CudaRuntimeStandIn::AllocateHost(size_t bytes) {
  TESSERA_RETURN_IF_ERROR(
      CheckOutsideCapture("allocation of page-locked host memory"));
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  void* const data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (data == nullptr) return absl::ResourceExhaustedError("no host memory");
  host_memory_.insert(data);
  ++host_allocations_;
  return data;
}

absl::Status CudaRuntimeStandIn::FreeHost(void* data) {
  TESSERA_RETURN_IF_ERROR(
      CheckOutsideCapture("free of page-locked host memory"));
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  if (host_memory_.erase(data) == 0) return InvalidValue("free of host memory");
  std::free(data);
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::Pin(void* data, size_t) {
  TESSERA_RETURN_IF_ERROR(DeviceCount().status());
  const std::lock_guard lock(mutex_);
  return pinned_.insert(data).second ? absl::OkStatus()
                                     : InvalidValue("locking of host memory");
}

absl::Status CudaRuntimeStandIn::Unpin(void* data) {
  const std::lock_guard lock(mutex_);
  return pinned_.erase(data) == 1 ? absl::OkStatus()
                                  : InvalidValue("unlocking of host memory");
}

absl::StatusOr<CudaRuntime::Stream> CudaRuntimeStandIn::CreateStream() {
  TESSERA_ASSIGN_OR_RETURN(const int ordinal, CurrentDevice());
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  auto stream = std::make_unique<StreamState>();
  stream->ordinal = ordinal;
  StreamState& state = *stream;
  state.thread = std::thread([this, &state] { RunStream(state); });
  streams_[&state] = std::move(stream);
  return static_cast<Stream>(&state);
}

absl::Status CudaRuntimeStandIn::DestroyStream(Stream stream) {
  std::unique_ptr<StreamState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return InvalidValue("end of a stream");
    state = std::move(found->second);
    streams_.erase(found);
    state->ends = true;
    changed_.notify_all();
  }
  state->thread.join();
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::Check(Stream stream) const {
  TESSERA_RETURN_IF_ERROR(poison_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    return absl::InvalidArgumentError(
        "cudaErrorInvalidResourceHandle: invalid resource handle");
  }
  const auto current = current_.find(std::this_thread::get_id());
  const int ordinal = current == current_.end() ? 0 : current->second;
  if (ordinal == found->second->ordinal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cudaErrorInvalidResourceHandle: the stream is of device ",
      found->second->ordinal, ", and the thread's device is ", ordinal));
}

void CudaRuntimeStandIn::Enqueue(Stream stream, Work work) {
  if (const auto capture = CaptureOf(stream)) {
    std::set<size_t>& last = capture->last[stream];
    capture->graph.nodes.push_back({std::move(work.run), last});
    last = {capture->graph.nodes.size() - 1};
    return;
  }
  streams_.at(stream)->work.push_back(std::move(work));
  changed_.notify_all();
}

void CudaRuntimeStandIn::RunStream(StreamState& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      if (stream.ends && (stream.work.empty() || !poison_.ok())) return true;
      return poison_.ok() && !is_paused_ && !stream.work.empty() &&
             (stream.work.front().after == nullptr ||
              stream.work.front().after->happened);
    });
    if (stream.ends && (stream.work.empty() || !poison_.ok())) return;
    const Work work = std::move(stream.work.front());
    stream.work.pop_front();
    stream.is_running = true;
    lock.unlock();
    if (work.run != nullptr) {
      std::this_thread::sleep_for(kDelay);
      work.run();
    }
    lock.lock();
    stream.is_running = false;
    if (work.makes != nullptr) work.makes->happened = true;
    changed_.notify_all();
  }
}

absl::Status CudaRuntimeStandIn::SynchronizeStream(Stream stream) {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("wait for a stream"));
  std::unique_lock lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return InvalidValue("wait for a stream");
  changed_.wait(lock, [&] { return IsIdle(*found->second); });
  return poison_;
}

absl::Status CudaRuntimeStandIn::SynchronizeDevice() {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("wait for the device"));
  TESSERA_ASSIGN_OR_RETURN(const int ordinal, CurrentDevice());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(streams_.begin(), streams_.end(), [&](const auto& it) {
      return it.second->ordinal != ordinal || IsIdle(*it.second);
    });
  });
  return poison_;
}

absl::Status CudaRuntimeStandIn::CopyAsync(void* target, const void* source,
                                           size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  if (target == nullptr || source == nullptr) return InvalidValue("copy");
  Enqueue(stream, {.run = [=] { std::memmove(target, source, bytes); },
                   .after = {},
                   .makes = {}});
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::FillAsync(void* target, std::byte value,
                                           size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  if (target == nullptr) return InvalidValue("fill");
  Enqueue(
      stream,
      {.run = [=] { std::memset(target, std::to_integer<int>(value), bytes); },
       .after = {},
       .makes = {}});
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::LastError() {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  return std::exchange(launch_error_, absl::OkStatus());
}

absl::StatusOr<CudaRuntime::EventHandle> CudaRuntimeStandIn::CreateEvent() {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  auto event = std::make_unique<EventSlot>();
  EventHandle handle = event.get();
  events_[handle] = std::move(event);
  return handle;
}

absl::Status CudaRuntimeStandIn::DestroyEvent(EventHandle event) {
  const std::lock_guard lock(mutex_);
  return events_.erase(event) == 1 ? absl::OkStatus()
                                   : InvalidValue("end of an event");
}

absl::Status CudaRuntimeStandIn::RecordEvent(EventHandle event, Stream stream) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  EventSlot& slot = *events_.at(event);
  slot.capture = CaptureOf(stream);
  if (slot.capture != nullptr) {
    slot.last = slot.capture->last[stream];
    return absl::OkStatus();
  }
  const auto point = std::make_shared<Point>();
  point->happened = false;
  slot.point = point;
  Enqueue(stream, {.run = {}, .after = {}, .makes = point});
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::WaitEvent(Stream stream, EventHandle event) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  const EventSlot& slot = *events_.at(event);
  if (slot.capture != nullptr || CaptureOf(stream) != nullptr) {
    return JoinCapture(stream, slot);
  }
  Enqueue(stream, {.run = {}, .after = slot.point, .makes = {}});
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaRuntimeStandIn::QueryEvent(EventHandle event) {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("test of an event"));
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  if (events_.at(event)->capture != nullptr) {
    return NotInCapture("test of an event", "cudaErrorCapturedEvent");
  }
  return events_.at(event)->point->happened;
}

absl::Status CudaRuntimeStandIn::SynchronizeEvent(EventHandle event) {
  TESSERA_RETURN_IF_ERROR(CheckOutsideCapture("wait for an event"));
  std::unique_lock lock(mutex_);
  if (events_.at(event)->capture != nullptr) {
    return NotInCapture("wait for an event", "cudaErrorCapturedEvent");
  }
  const std::shared_ptr<Point> point = events_.at(event)->point;
  changed_.wait(lock, [&] { return point->happened || !poison_.ok(); });
  return poison_;
}

std::shared_ptr<CudaRuntimeStandIn::CaptureState> CudaRuntimeStandIn::CaptureOf(
    Stream stream) const {
  for (const auto& capture : captures_) {
    if (capture->last.contains(stream)) return capture;
  }
  return nullptr;
}

absl::Status CudaRuntimeStandIn::CheckOutsideCapture(std::string_view what) {
  const std::lock_guard lock(mutex_);
  for (const auto& capture : captures_) {
    if (capture->thread != std::this_thread::get_id()) continue;
    capture->status = NotInCapture(what, "cudaErrorStreamCaptureInvalidated");
    return NotInCapture(what, "cudaErrorStreamCaptureUnsupported");
  }
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::JoinCapture(Stream stream,
                                             const EventSlot& event) {
  constexpr std::string_view kWhat = "wait of a stream for an event";
  const std::shared_ptr<CaptureState> capture = CaptureOf(stream);
  const bool has_ended =
      event.capture != nullptr && std::find(captures_.begin(), captures_.end(),
                                            event.capture) == captures_.end();
  const auto fail = [&](std::string_view error) {
    absl::Status status = NotInCapture(kWhat, error);
    if (capture != nullptr) capture->status = status;
    return status;
  };
  if (event.capture == nullptr) return fail("cudaErrorStreamCaptureIsolation");
  if (has_ended) return fail("cudaErrorInvalidValue: an ended capture");
  if (capture != nullptr && capture != event.capture) {
    return fail("cudaErrorStreamCaptureMerge");
  }
  event.capture->last[stream].insert(event.last.begin(), event.last.end());
  return absl::OkStatus();
}

absl::Status CudaRuntimeStandIn::BeginCapture(Stream stream) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  if (CaptureOf(stream) != nullptr) {
    return NotInCapture("begin of a capture", "cudaErrorIllegalState");
  }
  const auto capture = std::make_shared<CaptureState>();
  capture->origin = stream;
  capture->thread = std::this_thread::get_id();
  capture->last[stream] = {};
  captures_.push_back(capture);
  return absl::OkStatus();
}

absl::StatusOr<CudaRuntime::Graph> CudaRuntimeStandIn::EndCapture(
    Stream stream) {
  constexpr std::string_view kWhat = "end of a capture";
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<CaptureState> capture = CaptureOf(stream);
  if (capture == nullptr) return NotInCapture(kWhat, "cudaErrorIllegalState");
  if (capture->origin != stream) {
    return NotInCapture(kWhat, "cudaErrorStreamCaptureUnmatched");
  }
  if (capture->thread != std::this_thread::get_id()) {
    return NotInCapture(kWhat, "cudaErrorStreamCaptureWrongThread");
  }
  std::erase(captures_, capture);
  TESSERA_RETURN_IF_ERROR(capture->status);
  // All operations that precede the origin's last ones.
  std::set<size_t> joined = capture->last[stream];
  for (size_t node = capture->graph.nodes.size(); node-- > 0;) {
    if (!joined.contains(node)) continue;
    const std::set<size_t>& after = capture->graph.nodes[node].after;
    joined.insert(after.begin(), after.end());
  }
  if (joined.size() != capture->graph.nodes.size()) {
    return NotInCapture(kWhat, "cudaErrorStreamCaptureUnjoined");
  }
  auto graph = std::make_shared<CapturedNodes>(std::move(capture->graph));
  void* const handle = graph.get();
  graphs_[handle] = std::move(graph);
  return handle;
}

absl::Status CudaRuntimeStandIn::DestroyGraph(Graph graph) {
  const std::lock_guard lock(mutex_);
  return graphs_.erase(graph) == 1 ? absl::OkStatus()
                                   : InvalidValue("end of a graph");
}

absl::StatusOr<CudaRuntime::GraphExec> CudaRuntimeStandIn::InstantiateGraph(
    Graph graph) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(poison_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return InvalidValue("instantiation of a graph");
  auto exec = std::make_shared<CapturedNodes>(*found->second);
  void* const handle = exec.get();
  graphs_[handle] = std::move(exec);
  return handle;
}

absl::Status CudaRuntimeStandIn::DestroyGraphExec(GraphExec exec) {
  return DestroyGraph(exec);
}

absl::Status CudaRuntimeStandIn::LaunchGraph(GraphExec exec, Stream stream) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(Check(stream));
  const auto found = graphs_.find(exec);
  if (found == graphs_.end()) return InvalidValue("launch of a graph");
  if (CaptureOf(stream) != nullptr) {
    return NotInCapture("launch of a graph",
                        "the stand-in has no child graphs");
  }
  Enqueue(stream, {.run = [graph = found->second] { RunNodes(*graph); },
                   .after = {},
                   .makes = {}});
  return absl::OkStatus();
}

// Launches of one instantiated graph do not overlap; here, not even on
// different streams.
void CudaRuntimeStandIn::RunNodes(CapturedNodes& graph) {
  static std::mutex& one_at_a_time = *new std::mutex;
  const std::lock_guard lock(one_at_a_time);
  std::mt19937_64 random(++graph.launches);
  std::vector<bool> done(graph.nodes.size());
  for (size_t left = graph.nodes.size(); left > 0; --left) {
    std::vector<size_t> ready;
    for (size_t node = 0; node < graph.nodes.size(); ++node) {
      const std::set<size_t>& after = graph.nodes[node].after;
      if (!done[node] && std::all_of(after.begin(), after.end(),
                                     [&](size_t it) { return done[it]; })) {
        ready.push_back(node);
      }
    }
    const size_t next = ready[random() % ready.size()];
    if (graph.nodes[next].run) graph.nodes[next].run();
    done[next] = true;
  }
}

}  // namespace tessera
