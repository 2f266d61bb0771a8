// CudaRuntimeStandIn: the streams, events and graphs of the CUDA runtime on
// host memory, for tests without a GPU.
//
//   auto runtime = std::make_shared<CudaRuntimeStandIn>(StandInOptions{});
//   auto device = CudaDevice::Create({.runtime = runtime});
//   runtime->Poison(absl::InternalError("cudaErrorIllegalAddress: ..."));
//
// Each stream has a thread that executes its work late. Copies, fills and
// kernels (LaunchKernel) access host memory, so that ThreadSanitizer detects
// unordered accesses. A graph executes its work in any order that the capture
// allows, a different one in each launch.
#ifndef TESSERA_BASE_DEVICE_TESTING_CUDA_RUNTIME_STAND_IN_H_
#define TESSERA_BASE_DEVICE_TESTING_CUDA_RUNTIME_STAND_IN_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/cuda_runtime.h"

namespace tessera {

struct StandInOptions {
  std::vector<CudaProperties> devices = {
      {"Stand-in", 9, 0, int64_t{1} << 30, "0000:00:01.0"}};
  CudaVersions versions = {13000, 13000};
};

class CudaRuntimeStandIn final : public CudaRuntime {
 public:
  explicit CudaRuntimeStandIn(StandInOptions options = {});
  // All streams must be destroyed first.
  ~CudaRuntimeStandIn() override;

  // Launches `kernel` on a stream; it runs late.
  void LaunchKernel(void* stream, std::function<void()> kernel);
  // Makes the next LastError return `error`.
  void FailLaunch(absl::Status error);
  // Acts like a kernel that corrupts the context: all later calls return
  // `error`.
  void Poison(absl::Status error);
  // Keeps streams from beginning work until Resume.
  void Pause();
  void Resume();

  // Objects that exist now, and allocations of page-locked memory so far.
  struct Counts {
    int64_t streams = 0;
    int64_t events = 0;
    int64_t device_bytes = 0;
    int64_t host_allocations = 0;
    int64_t graphs = 0;  // Captured or instantiated.
  };
  Counts counts() const;

  absl::StatusOr<CudaVersions> Versions() override;
  absl::StatusOr<int> DeviceCount() override;
  absl::StatusOr<CudaProperties> Properties(int ordinal) override;
  bool HasContext(int ordinal) override;
  absl::StatusOr<int> CurrentDevice() override;
  absl::Status SetCurrentDevice(int ordinal) override;
  absl::StatusOr<CudaMemoryUse> MemoryUse() override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::Status Free(void* data) override;
  absl::StatusOr<void*> AllocateHost(size_t bytes) override;
  absl::Status FreeHost(void* data) override;
  absl::Status Pin(void* data, size_t bytes) override;
  absl::Status Unpin(void* data) override;
  absl::StatusOr<Stream> CreateStream() override;
  absl::Status DestroyStream(Stream stream) override;
  absl::Status SynchronizeStream(Stream stream) override;
  absl::Status SynchronizeDevice() override;
  absl::Status CopyAsync(void* target, const void* source, size_t bytes,
                         Stream stream) override;
  absl::Status FillAsync(void* target, std::byte value, size_t bytes,
                         Stream stream) override;
  absl::Status LastError() override;
  absl::StatusOr<EventHandle> CreateEvent() override;
  absl::Status DestroyEvent(EventHandle event) override;
  absl::Status RecordEvent(EventHandle event, Stream stream) override;
  absl::Status WaitEvent(Stream stream, EventHandle event) override;
  absl::StatusOr<bool> QueryEvent(EventHandle event) override;
  absl::Status SynchronizeEvent(EventHandle event) override;
  absl::Status BeginCapture(Stream stream) override;
  absl::StatusOr<Graph> EndCapture(Stream stream) override;
  absl::Status DestroyGraph(Graph graph) override;
  absl::StatusOr<GraphExec> InstantiateGraph(Graph graph) override;
  absl::Status DestroyGraphExec(GraphExec exec) override;
  absl::Status LaunchGraph(GraphExec exec, Stream stream) override;

 private:
  // A captured operation, and the earlier operations that it depends on.
  struct Node {
    std::function<void()> run;
    std::set<size_t> after;
  };
  struct CapturedNodes {
    std::vector<Node> nodes;
    uint64_t launches = 0;
  };
  struct CaptureState {
    CapturedNodes graph;
    Stream origin = nullptr;
    std::thread::id thread;
    absl::Status status;  // An error invalidates the capture.
    // For each stream of the capture, the operations that have no successor.
    std::map<Stream, std::set<size_t>> last;
  };
  // A point in a stream. An event refers to the point of its last record.
  struct Point {
    bool happened = true;
  };
  struct EventSlot {
    std::shared_ptr<Point> point = std::make_shared<Point>();
    std::shared_ptr<CaptureState> capture;  // Capture of the last record.
    std::set<size_t> last;                  // Operations that precede it.
  };
  struct Work {
    std::function<void()> run;     // Null: no effect.
    std::shared_ptr<Point> after;  // Begins after this.
    std::shared_ptr<Point> makes;  // Makes this happen.
  };
  struct StreamState {
    int ordinal = 0;
    std::deque<Work> work;
    bool is_running = false;
    bool ends = false;
    std::thread thread;
  };

  absl::Status Check(Stream stream) const;
  void Enqueue(Stream stream, Work work);
  std::shared_ptr<CaptureState> CaptureOf(Stream stream) const;
  // Invalidates a capture of this thread, in which `what` is not allowed.
  absl::Status CheckOutsideCapture(std::string_view what);
  absl::Status JoinCapture(Stream stream, const EventSlot& event);
  static void RunNodes(CapturedNodes& graph);
  void RunStream(StreamState& stream);
  bool IsIdle(const StreamState& stream) const {
    return !poison_.ok() ? !stream.is_running
                         : stream.work.empty() && !stream.is_running;
  }

  const StandInOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status poison_;
  absl::Status launch_error_;
  bool is_paused_ = false;
  std::map<std::thread::id, int> current_;
  std::set<int> contexts_;
  std::map<void*, std::pair<int, size_t>> memory_;  // Device and size.
  std::set<void*> host_memory_;
  std::set<void*> pinned_;
  int64_t host_allocations_ = 0;
  std::map<Stream, std::unique_ptr<StreamState>> streams_;
  std::map<EventHandle, std::unique_ptr<EventSlot>> events_;
  std::vector<std::shared_ptr<CaptureState>> captures_;  // Not ended.
  std::map<void*, std::shared_ptr<CapturedNodes>> graphs_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TESTING_CUDA_RUNTIME_STAND_IN_H_
