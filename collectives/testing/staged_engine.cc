#include "collectives/testing/staged_engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {
namespace {

// A range of host memory.
struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;

  bool empty() const { return begin == end; }
  bool Overlaps(const Range& other) const {
    return begin < other.end && other.begin < end;
  }
};

// An operation on device memory, followed by the download of its output. The
// call must not wait for other ranks. If the operation is not enqueued until
// they call it (Event::Enqueued), the first thread that waits for it or finds
// it done enqueues the download. An error is returned when the queue no longer
// uses the caller's buffers.
class StagedWork final : public EventState {
 public:
  StagedWork(std::shared_ptr<Queue> queue, Event done,
             std::span<const std::byte> from, std::span<std::byte> to)
      : queue_(std::move(queue)),
        done_(std::move(done)),
        from_(from),
        to_(to) {}

  absl::StatusOr<bool> Test() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // Another thread waits.
    if (!downloads_) {
      const absl::StatusOr<bool> is_done = done_.Test();
      if (!is_done.ok()) return AfterUploads(is_done.status());
      if (!*is_done) return false;
    }
    TESSERA_RETURN_IF_ERROR(AfterUploads(Download()));
    return last_.Test();
  }
  absl::Status Wait() override {
    const std::lock_guard lock(mutex_);
    TESSERA_RETURN_IF_ERROR(AfterUploads(Download()));
    return last_.Wait();
  }

  absl::Status StartDownload() {
    const std::lock_guard lock(mutex_);
    return Download();
  }

 private:
  // Without a download the queue has only uploads, which always terminate.
  absl::Status AfterUploads(absl::Status status) {
    if (!status.ok()) static_cast<void>(queue_->Synchronize());
    return status;
  }

  absl::Status Download() {
    if (downloads_) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(queue_->Wait(done_));
    if (!to_.empty()) TESSERA_RETURN_IF_ERROR(queue_->Copy(from_, to_));
    TESSERA_ASSIGN_OR_RETURN(last_, queue_->Record());
    downloads_ = true;
    return absl::OkStatus();
  }

  const std::shared_ptr<Queue> queue_;
  const Event done_;
  const std::span<const std::byte> from_;
  const std::span<std::byte> to_;
  std::mutex mutex_;
  bool downloads_ = false;
  Event last_;
};

// Device memory for the buffers of one operation at a time.
class Stage {
 public:
  // The operation's event has already returned any error of the work.
  ~Stage() {
    if (queue_ != nullptr) static_cast<void>(queue_->Synchronize());
  }

  static absl::StatusOr<std::unique_ptr<Stage>> Create(Device& device) {
    auto stage = std::make_unique<Stage>();
    stage->device_ = &device;
    TESSERA_ASSIGN_OR_RETURN(stage->queue_, device.CreateQueue("staging"));
    return stage;
  }

  absl::StatusOr<bool> IsIdle() const { return last_.Test(); }

  absl::StatusOr<Event> Enqueue(Engine& engine, const Operation& operation,
                                const EnqueueCall& call) {
    const Sides sides = SidesOf(operation, engine.rank());
    const Range in = sides.input ? RangeOf(operation.input.AsBytes()) : Range();
    const Range out =
        sides.output ? RangeOf(operation.output.AsBytes()) : Range();
    Operation staged = operation;
    TESSERA_RETURN_IF_ERROR(Place(in, out, staged));
    TESSERA_RETURN_IF_ERROR(queue_->Wait(call.after, call.place));
    if (!in.empty()) {
      TESSERA_RETURN_IF_ERROR(queue_->Copy(operation.input.AsBytes(),
                                           Writable(staged.input.AsBytes())));
    }
    EnqueueCall staged_call = call;
    TESSERA_ASSIGN_OR_RETURN(staged_call.after, queue_->Record());
    TESSERA_ASSIGN_OR_RETURN(
        const Event done, engine.Enqueue(staged, staged_call), AfterUploads(_));
    const bool waits_for_ranks =
        done.state() != nullptr && done.state()->device() == nullptr;
    const auto work = std::make_shared<StagedWork>(
        queue_, done, staged.output.AsBytes(),
        out.empty() ? std::span<std::byte>() : operation.output.AsBytes());
    if (!waits_for_ranks) TESSERA_RETURN_IF_ERROR(work->StartDownload());
    last_ = Event(work);
    return last_;
  }

 private:
  // The caller may reuse its buffers.
  absl::Status AfterUploads(absl::Status status) {
    static_cast<void>(queue_->Synchronize());
    return status;
  }

  static Range RangeOf(std::span<const std::byte> bytes) {
    return {bytes.data(), bytes.data() + bytes.size()};
  }
  static std::span<std::byte> Writable(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  // Moves the buffers of the operation to device memory: to one allocation if
  // they overlap, otherwise to two.
  absl::Status Place(const Range& in, const Range& out, Operation& operation) {
    if (!in.Overlaps(out)) {
      TESSERA_ASSIGN_OR_RETURN(operation.input.data, PlaceIn(input_, in));
      TESSERA_ASSIGN_OR_RETURN(operation.output.data, PlaceIn(output_, out));
      return absl::OkStatus();
    }
    const Range both = {std::min(in.begin, out.begin),
                        std::max(in.end, out.end)};
    TESSERA_ASSIGN_OR_RETURN(std::byte* const at, PlaceIn(input_, both));
    operation.input.data = at + (in.begin - both.begin);
    operation.output.data = at + (out.begin - both.begin);
    return absl::OkStatus();
  }

  absl::StatusOr<std::byte*> PlaceIn(tessera::Buffer& block,
                                     const Range& range) {
    if (range.empty()) return nullptr;
    const size_t offset = reinterpret_cast<uintptr_t>(range.begin) % 64;
    const size_t size = offset + static_cast<size_t>(range.end - range.begin);
    if (block.size() < size) {
      TESSERA_ASSIGN_OR_RETURN(
          block, tessera::Buffer::Allocate(device_->memory(), size));
    }
    return block.data() + offset;
  }

  Device* device_ = nullptr;
  tessera::Buffer input_;
  tessera::Buffer output_;
  Event last_;
  std::shared_ptr<Queue> queue_;
};

class StagedEngine final : public Engine {
 public:
  StagedEngine(std::unique_ptr<Engine> engine, Device& device)
      : device_(device), engine_(std::move(engine)) {}

  std::string_view name() const override { return engine_->name(); }
  Rank rank() const override { return engine_->rank(); }
  int64_t size() const override { return engine_->size(); }
  bool Implements(OpKind kind) const override {
    return engine_->Implements(kind);
  }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return engine_->Run(operation, context);
  }
  Transport* transport() override { return nullptr; }
  bool enqueues() const override { return true; }

  absl::StatusOr<Event> Enqueue(const Operation& operation,
                                const EnqueueCall& call) override {
    for (const std::unique_ptr<Stage>& stage : stages_) {
      TESSERA_ASSIGN_OR_RETURN(const bool is_idle, stage->IsIdle());
      if (is_idle) return stage->Enqueue(*engine_, operation, call);
    }
    TESSERA_ASSIGN_OR_RETURN(stages_.emplace_back(), Stage::Create(device_));
    return stages_.back()->Enqueue(*engine_, operation, call);
  }
  void OnError(std::function<void(const absl::Status&)> on_error) override {
    engine_->OnError(std::move(on_error));
  }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                             engine_->CreateSubgroup(members, group, deadline));
    return StageBuffers(std::move(engine), device_);
  }
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateSharedFrom(device_.staging_memory(), bytes);
  }
  void Abort(const absl::Status& reason) override { engine_->Abort(reason); }
  std::vector<PeerReport> Peers() const override { return engine_->Peers(); }

 private:
  Device& device_;
  // Destroyed after the engine, whose destructor waits for their work.
  std::vector<std::unique_ptr<Stage>> stages_;
  const std::unique_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<Engine> StageBuffers(std::unique_ptr<Engine> engine,
                                     Device& device) {
  return std::make_unique<StagedEngine>(std::move(engine), device);
}

}  // namespace tessera::collectives
