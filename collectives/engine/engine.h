// Engine: the interface that executes the operations of one rank in one group.
// Also SharedMemory and EnqueueCall, its parts, and ProcessGeneration, which
// detects forked children.
#ifndef TESSERA_COLLECTIVES_ENGINE_ENGINE_H_
#define TESSERA_COLLECTIVES_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// A counter that fork increments in the child, to detect use of an object in a
// forked child. Costs one load (getpid is a system call). Thread-safe.
//
//   const uint64_t created = ProcessGeneration();
//   ...
//   if (ProcessGeneration() != created) return;  // A forked child.
uint64_t ProcessGeneration();

// Memory that all ranks of an engine can access without staging. The destructor
// frees it and must run before the communicator's destructor.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::span<std::byte> bytes() const = 0;
  // Device memory is accessed only by work of its device.
  virtual MemoryKind kind() const { return MemoryKind::kHost; }
};

// For Engine::AllocateShared. InvalidArgument if `bytes` is negative, and the
// resource's errors.
absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateSharedFrom(
    std::shared_ptr<MemoryResource> resource, int64_t bytes);

// The arguments of Engine::Enqueue other than the operation.
struct EnqueueCall {
  // The operation begins after this event. The host does not wait for it.
  Event after;
  // The longest time from when the device begins the operation to its end, or
  // until all ranks have called it.
  absl::Duration timeout = absl::InfiniteDuration();
  // Must support the operation. nullopt: the engine chooses.
  std::optional<Algorithm> algorithm = {};
  // The name of the group and the signature of the operation, for errors.
  std::string_view group = "";
  Signature signature = {};
  SourcePlace place = SourcePlace::current();
};

// A collective that Engine::Plan has planned.
class OperationPlan {
 public:
  virtual ~OperationPlan() = default;
  // Like Engine::Run.
  virtual absl::Status Run() = 0;
};

// Moves the bytes of one rank in one group (threads, shared memory, MPI, Gloo,
// NCCL, or your own). Users hold a Communicator, which runs on an engine.
//
// An engine must provide a Transport or implement every kind of collective:
// Communicator executes the kinds that the engine does not implement with an
// algorithm over the transport. Communicator also validates, numbers, orders
// and records operations, chooses the algorithm, and rejects calls after an
// error; an engine need not.
//
// An engine of a device enqueues operations (enqueues() is true): Communicator
// calls Enqueue for collectives and messages, and never Run, Enter, Leave or
// the transport. Its communicator owns a second one for host memory
// (Communicator::host).
//
// Threads: one thread at a time calls Run or Enqueue, in the same order on all
// ranks of the group. The transport may be used concurrently (see transport.h).
// Any thread may call Abort and Peers at any time.
class Engine {
 public:
  virtual ~Engine() = default;

  // "in_process", "shared_memory", "mpi", "gloo", "nccl" or a registered name.
  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Returns true if Run supports this kind of collective.
  virtual bool Implements(OpKind kind) const = 0;

  // Returns true if Run can execute this reduction, which Implements, so that
  // it folds the inputs from left to right in rank order and rounds once;
  // results then do not depend on size or chunks. Run must do so if
  // OperationContext::in_rank_order is true.
  virtual bool FoldsInRankOrder(const Operation&) const { return false; }

  // True if operations take no time, for example because they are only counted.
  // In this case no operation runs on another thread, and a started message
  // stays in flight until the caller waits for it.
  virtual bool TakesNoTime() const { return false; }

  // Called before and after every collective, also those executed over the
  // transport, so that an engine can publish this rank's state to its peers.
  virtual void Enter(OperationContext&) {}
  virtual void Leave(OperationContext&) {}

  // Executes a valid collective for which Implements returns true. Returns when
  // this rank's part is done and its buffers may be reused. Returns the errors
  // of Transport::Wait; after an error the group is broken.
  virtual absl::Status Run(const Operation& operation,
                           OperationContext& context) = 0;

  // Plans a valid collective that Implements and runs many times on the same
  // buffers. Null: there is no faster way than Run. `operation` and `context`,
  // whose number and deadline change with each run, outlive the plan. Other
  // ranks may run the same operation by Run.
  virtual std::unique_ptr<OperationPlan> Plan(const Operation& /*operation*/,
                                              OperationContext& /*context*/) {
    return nullptr;
  }

  // True if the engine enqueues operations on a device.
  virtual bool enqueues() const { return false; }

  // Enqueues a valid collective or message on device or host memory; does not
  // wait for other ranks. The operation is done when the returned event
  // happens. Collectives are done in the order of the calls; messages
  // wait only for earlier messages between the same two ranks in the same
  // direction. Unimplemented, without side effects, if the engine does not
  // support the operation or the algorithm. Any other error, including a
  // failure of the operation itself, breaks the group.
  virtual absl::StatusOr<Event> Enqueue(const Operation& operation,
                                        const EnqueueCall& call);

  // An engine that enqueues calls `on_error` when an operation fails, at most
  // once, on any thread. A null callback unregisters the current one, after any
  // running call returns.
  virtual void OnError(std::function<void(const absl::Status&)> on_error);

  // Null if the engine has no point-to-point messages, or enqueues them.
  virtual Transport* transport() = 0;

  // Creates a group of `members`: distinct ranks of this group including this
  // rank, in the new group's order. Only the members call it, all with the same
  // list; calls with equal lists come in the same order on all members. Waits
  // for the other members until `deadline` (MonotonicNanos). `group` is the new
  // group's id, equal on all members.
  virtual absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline) = 0;

  // Allocates memory on which this engine's collectives are fastest, aligned to
  // 64 bytes; ordinary memory if the engine has no special memory. A local
  // call, not a collective. ResourceExhausted if there is not enough; the
  // message says how much is available.
  virtual absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) = 0;

  // Makes all current and later calls of this group fail with `reason` (not
  // OK), on every rank that can be reached.
  virtual void Abort(const absl::Status& reason) = 0;

  // The known state of every rank of the group, in rank order.
  virtual std::vector<PeerReport> Peers() const = 0;
};

// The ranks 0 to size - 1.
std::vector<Rank> AllRanks(int64_t size);

// A second group of all ranks of the engine; a collective call. `group` is an
// id that no user's subgroup can have, because those are hashes of member
// lists: a small number. Waits for at most `timeout` or an hour.
absl::StatusOr<std::unique_ptr<Engine>> Duplicate(Engine& engine,
                                                  uint32_t group,
                                                  absl::Duration timeout);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ENGINE_H_
