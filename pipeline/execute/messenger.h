// Sends and receives the boundary tensors of a pipeline rank (Messenger), in
// buffers of a pool (BoundaryPool).
#ifndef TESSERA_PIPELINE_EXECUTE_MESSENGER_H_
#define TESSERA_PIPELINE_EXECUTE_MESSENGER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "pipeline/execute/execution_plan.h"
#include "pipeline/execute/options.h"
#include "pipeline/execute/stage.h"
#include "pipeline/execute/step_trace.h"

namespace tessera::pipeline {

// A buffer of a BoundaryPool.
struct BoundaryBuffer {
  TensorView view;
  ConstTensorView read;  // Of the same memory.
  size_t shelf = 0;      // The pool's shelf that it returns to.
  Buffer memory;         // One of these two owns the bytes.
  std::unique_ptr<collectives::SharedMemory> shared;
  // If the buffer is free or being received into: completes when its last user
  // is done.
  Event last_use = {};

  collectives::Buffer message() const {
    return {view.data(), view.element_count(), view.dtype()};
  }
};

// A pool of the tensors passed between stages, reused across micro-batches and
// steps.
//
//   TESSERA_RETURN_IF_ERROR(pool.SetSpecs(specs, crossed));
//   TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* buffer, pool.Acquire(2));
//   ...
//   TESSERA_RETURN_IF_ERROR(pool.Release(buffer));
//
// Boundaries of the same spec share buffers, but boundaries between ranks and
// boundaries within a rank have separate ones: the former are in the memory on
// which the communicator is fastest. A buffer may be released while work on it
// is still enqueued: the work of its next user waits, not the host. Not
// thread-safe.
class BoundaryPool {
 public:
  // Stages compute on `queue`. If `memory` is null, boundaries between ranks
  // use the communicator's memory and boundaries within a rank the device's.
  // All arguments must outlive the pool.
  BoundaryPool(collectives::Communicator& communicator, Queue& queue,
               std::shared_ptr<MemoryResource> memory, StepTrace& trace)
      : communicator_(communicator),
        queue_(queue),
        is_immediate_(queue.is_immediate()),
        memory_(std::move(memory)),
        trace_(trace) {}
  // Waits for all work on the buffers.
  ~BoundaryPool();
  BoundaryPool(const BoundaryPool&) = delete;
  BoundaryPool& operator=(const BoundaryPool&) = delete;

  // Sets the spec of each boundary, which must pass CheckSpec. `crossed` has
  // true for each boundary that messages cross. Frees all buffers: none may be
  // in use, and the host must have waited for the queue. Returns the error of a
  // message from or to a buffer.
  absl::Status SetSpecs(std::vector<TensorSpec> specs,
                        const std::vector<bool>& crossed);
  const std::vector<TensorSpec>& specs() const { return specs_; }
  int64_t BytesOf(int32_t boundary) const {
    return shelves_[shelf_of_[static_cast<size_t>(boundary)]].bytes;
  }

  // Returns an uninitialised buffer for work on the queue, which waits for the
  // buffer's last use. Returns errors of the memory or the queue.
  absl::StatusOr<BoundaryBuffer*> Acquire(int32_t boundary);
  // The same for a message, which must begin after the buffer's `last_use`.
  absl::StatusOr<BoundaryBuffer*> AcquireToReceive(int32_t boundary);

  // Returns a buffer to the pool after the work enqueued so far. Does nothing
  // for null.
  absl::Status Release(BoundaryBuffer* buffer) {
    if (buffer == nullptr) return absl::OkStatus();
    if (!is_immediate_) return ReleaseOnDevice(buffer);
    PutBack(buffer);
    return absl::OkStatus();
  }
  // Returns a buffer to the pool after a message.
  void ReleaseAfter(Event message, BoundaryBuffer* buffer);

 private:
  // Buffers of one spec.
  struct Shelf {
    TensorSpec spec;
    bool is_crossed = false;
    int64_t bytes = 0;
    std::vector<BoundaryBuffer*> free;
  };

  absl::StatusOr<std::unique_ptr<BoundaryBuffer>> Make(const Shelf& shelf);
  void PutBack(BoundaryBuffer* buffer);
  absl::Status ReleaseOnDevice(BoundaryBuffer* buffer);

  collectives::Communicator& communicator_;
  Queue& queue_;
  const bool is_immediate_;  // The queue is.
  const std::shared_ptr<MemoryResource> memory_;
  StepTrace& trace_;
  std::vector<TensorSpec> specs_;
  std::vector<size_t> shelf_of_;  // By boundary.
  std::vector<Shelf> shelves_;
  std::vector<std::unique_ptr<BoundaryBuffer>> all_;
};

// Sends and receives the messages of one rank's plan.
//
//   TESSERA_RETURN_IF_ERROR(messenger.Begin(plan));
//   TESSERA_RETURN_IF_ERROR(messenger.Send(action, buffer));
//   TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* input, messenger.Receive(action));
//   TESSERA_RETURN_IF_ERROR(messenger.Drain());
//
// A communicator has one queue per ordered pair of ranks; a schedule has one
// per ordered pair and direction. The two agree: if a schedule cannot deadlock
// under rendezvous, each message is sent and received at the same moment, so
// any two messages of a pair of ranks are sent and received in the same order,
// whatever their directions. So receives can be posted in list order.
//
// No deadlock: each call waits only for messages at or before its own position
// in the list, on a rank that has reached this position. The rendezvous of the
// proof waits for at least as much.
//
// On a device the queue waits instead of the host: a send begins after the work
// enqueued before the call, work enqueued after a Receive begins after it, and
// a posted receive begins after the last use of its buffer. The next wait for
// the queue returns errors of messages.
class Messenger {
 public:
  // Stages compute on `queue`. All arguments must outlive the messenger.
  Messenger(collectives::Communicator& communicator, Queue& queue,
            BoundaryPool& pool, StepTrace& trace,
            const ExecutorOptions& options);

  // Starts a step: later sends and receives follow `plan`, which must outlive
  // the step. Posts the first receives.
  absl::Status Begin(const ExecutionPlan& plan);

  // Sends the buffer and returns it to the pool as soon as possible.
  absl::Status Send(const PlannedAction& send, BoundaryBuffer* buffer);

  // Returns the plan's next message from that rank. The caller owns the buffer.
  absl::StatusOr<BoundaryBuffer*> Receive(const PlannedAction& receive);

  // Sends and receives concurrently with one rank, in whatever order the peer
  // does.
  absl::StatusOr<BoundaryBuffer*> Exchange(const PlannedAction& send,
                                           BoundaryBuffer* buffer,
                                           const PlannedAction& receive);

  // Returns the buffers of completed sends to the pool, without waiting. Does
  // nothing on a device, where buffers are returned earlier.
  absl::Status Poll();

  // Waits for all sends; on a device the queue waits, not the host.
  absl::Status Drain();

  // After the communicator broke: waits until it no longer uses any buffer.
  void Abandon();

 private:
  struct Outgoing {
    collectives::Work work;
    BoundaryBuffer* buffer;
    const PlannedAction* send;
    double begin;
  };
  struct Incoming {
    collectives::Work work;
    BoundaryBuffer* buffer;
  };
  struct Peer {
    std::deque<Outgoing> sends;     // In flight, oldest first.
    std::deque<Incoming> receives;  // Posted ahead, oldest first.
    size_t next = 0;  // The plan's first receive that is not posted.
  };

  Peer& PeerOf(const PlannedAction& action) {
    return peers_[static_cast<size_t>(action.peer)];
  }
  bool IsStarted(const PlannedAction& action) const {
    return !is_immediate_ ||
           pool_.BytesOf(action.boundary) >= start_from_bytes_;
  }
  collectives::CallOptions Call() const { return {.timeout = timeout_}; }
  // The timeout of a message that the host awaits starts when the wait does:
  // see Await.
  absl::Duration StartedTimeout() const {
    return is_immediate_ ? absl::InfiniteDuration() : timeout_;
  }

  absl::Status Post(const PlannedAction& receive);
  absl::Status PostAhead(int32_t from);
  absl::Status StartSend(const PlannedAction& send, BoundaryBuffer* buffer);
  absl::StatusOr<BoundaryBuffer*> ReceiveHere(const PlannedAction& receive);
  absl::StatusOr<BoundaryBuffer*> ReceivePosted(const PlannedAction& receive);
  absl::StatusOr<BoundaryBuffer*> ExchangeHere(const PlannedAction& send,
                                               BoundaryBuffer* buffer,
                                               const PlannedAction& receive);
  absl::Status AwaitOldest(Peer& peer);
  absl::Status Await(const collectives::Work& work,
                     const PlannedAction& action);
  absl::Status At(const PlannedAction& action, const absl::Status& error) const;
  void FinishOldest(Peer& peer);

  collectives::Communicator& communicator_;
  Queue& queue_;
  const bool is_immediate_;  // The queue is.
  BoundaryPool& pool_;
  StepTrace& trace_;
  const absl::Duration timeout_;
  const int64_t start_from_bytes_;
  const size_t receives_ahead_;
  const size_t sends_in_flight_;
  const ExecutionPlan* plan_ = nullptr;
  std::vector<Peer> peers_;
  int64_t sends_under_way_ = 0;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_MESSENGER_H_
