// Messenger: sends and receives the boundary tensors of a pipeline rank, in
// buffers of a pool.
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

// BoundaryPool: the tensors passed between stages, reused across micro-batches
// and steps.
//
//   TESSERA_RETURN_IF_ERROR(pool.SetSpecs(specs, crossed));
//   TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* buffer, pool.Acquire(2));
//   ...
//   TESSERA_RETURN_IF_ERROR(pool.Release(buffer));
//
// Boundaries of the same spec share buffers; boundaries between ranks and
// boundaries within a rank have separate ones: the former are in the memory on
// which the communicator is fastest. A buffer may be given back while work on
// it is still enqueued: the next user's work waits for it, not the host. Not
// thread-safe.
struct BoundaryBuffer {
  TensorView view;
  ConstTensorView read;  // The same.
  size_t shelf = 0;      // Where it goes when it is given back.
  Buffer memory;         // One of these two owns the bytes.
  std::unique_ptr<collectives::SharedMemory> shared;
  // If it is free, or received into: happens when its last user is done.
  Event last_use = {};

  collectives::Buffer message() const {
    return {view.data(), view.element_count(), view.dtype()};
  }
};

class BoundaryPool {
 public:
  // Stages compute on `queue`. `memory` null: the communicator's between ranks,
  // the device's within a rank. All outlive the pool.
  BoundaryPool(collectives::Communicator& communicator, Queue& queue,
               std::shared_ptr<MemoryResource> memory, StepTrace& trace)
      : communicator_(communicator),
        queue_(queue),
        is_immediate_(queue.is_immediate()),
        memory_(std::move(memory)),
        trace_(trace) {}
  // The host waits for all work on the buffers.
  ~BoundaryPool();
  BoundaryPool(const BoundaryPool&) = delete;
  BoundaryPool& operator=(const BoundaryPool&) = delete;

  // Sets the spec of each boundary, which must pass CheckSpec. `crossed` says
  // for each boundary whether messages cross it. Frees all buffers; none may be
  // in use, and the host has waited for the queue. An error is that of a
  // message from or to a buffer.
  absl::Status SetSpecs(std::vector<TensorSpec> specs,
                        const std::vector<bool>& crossed);
  const std::vector<TensorSpec>& specs() const { return specs_; }
  int64_t BytesOf(int32_t boundary) const {
    return shelves_[shelf_of_[static_cast<size_t>(boundary)]].bytes;
  }

  // A buffer with any contents, for work on the queue, which waits for the
  // buffer's last use. An error is the memory's or the queue's.
  absl::StatusOr<BoundaryBuffer*> Acquire(int32_t boundary);
  // The same for a message, which must begin after `last_use`.
  absl::StatusOr<BoundaryBuffer*> AcquireToReceive(int32_t boundary);

  // Gives a buffer back after the work that the queue has now. Does nothing for
  // null.
  absl::Status Release(BoundaryBuffer* buffer) {
    if (buffer == nullptr) return absl::OkStatus();
    if (!is_immediate_) return ReleaseOnDevice(buffer);
    PutBack(buffer);
    return absl::OkStatus();
  }
  // The same after a message.
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

// Messenger: sends and receives the messages of one rank's plan.
//
//   TESSERA_RETURN_IF_ERROR(messenger.Begin(plan));
//   TESSERA_RETURN_IF_ERROR(messenger.Send(action, buffer));
//   TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* input, messenger.Receive(action));
//   TESSERA_RETURN_IF_ERROR(messenger.Drain());
//
// A communicator has one queue per ordered pair of ranks, a schedule one per
// ordered pair and direction. They agree: if a schedule cannot deadlock under
// rendezvous, any two messages of a pair are sent and received in the same
// order, whatever their directions, because each is sent and received at one
// moment. So receives can be posted in list order.
//
// No deadlock: each call waits only for messages at or before its own place in
// the list, on a rank that has reached this place. This is at most what the
// proof's rendezvous waits for.
//
// On a device the same waits are the queue's, and the host never waits: a send
// begins after the work that the queue has at the call, work enqueued after a
// Receive begins after it, and a posted receive begins after the last use of
// its buffer. Errors of messages are returned by the next wait for the queue.
class Messenger {
 public:
  // Stages compute on `queue`. All outlive the messenger.
  Messenger(collectives::Communicator& communicator, Queue& queue,
            BoundaryPool& pool, StepTrace& trace,
            const ExecutorOptions& options);

  // Starts a step: later sends and receives follow `plan`, which must outlive
  // the step. Posts the first receives.
  absl::Status Begin(const ExecutionPlan& plan);

  // Sends the buffer and gives it back to the pool as soon as it can.
  absl::Status Send(const PlannedAction& send, BoundaryBuffer* buffer);

  // The plan's next message from that rank; the buffer is the caller's.
  absl::StatusOr<BoundaryBuffer*> Receive(const PlannedAction& receive);

  // Sends and receives at once with one rank, in whatever order the peer does.
  absl::StatusOr<BoundaryBuffer*> Exchange(const PlannedAction& send,
                                           BoundaryBuffer* buffer,
                                           const PlannedAction& receive);

  // Gives back the buffers of sends that are complete. Does not wait. On a
  // device, where buffers are given back before, does nothing.
  absl::Status Poll();

  // Waits for all sends; on a device the queue does.
  absl::Status Drain();

  // The communicator is broken: waits until it has let go of all buffers.
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
    std::deque<Outgoing> sends;     // Under way, oldest first.
    std::deque<Incoming> receives;  // Posted ahead, oldest first.
    size_t next = 0;  // Of the plan's receives, the first one not posted.
  };

  Peer& PeerOf(const PlannedAction& action) {
    return peers_[static_cast<size_t>(action.peer)];
  }
  bool IsStarted(const PlannedAction& action) const {
    return !is_immediate_ ||
           pool_.BytesOf(action.boundary) >= start_from_bytes_;
  }
  collectives::CallOptions Call() const { return {.timeout = timeout_}; }
  // The time of a message that the host awaits begins when it does: see Await.
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
