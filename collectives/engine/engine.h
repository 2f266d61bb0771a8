// ProcessGeneration: tells a process from the children that it forks.
//
//   const uint64_t born = ProcessGeneration();
//   ...
//   if (ProcessGeneration() != born) { /* this is a forked child */ }
#ifndef TESSERA_COLLECTIVES_ENGINE_ENGINE_H_
#define TESSERA_COLLECTIVES_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Engine: moves the bytes of one rank in one group (threads, shared memory,
// MPI, Gloo, NCCL, or your own). Users hold a Communicator, which runs on an
// engine.
//
// An engine must provide a Transport or implement every kind of collective:
// Communicator executes the kinds that the engine does not implement with an
// algorithm over the transport. Communicator also validates, numbers, orders
// and records operations, chooses the algorithm, and rejects calls after an
// error; an engine need not.
//
// Threads: one thread at a time calls Run, in the same order on all ranks of
// the group. The transport may be used concurrently (see transport.h). Any
// thread may call Abort and Peers at any time.

// Memory that all ranks of an engine can access without staging. Freed by the
// destructor, which must run before that of the communicator.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::span<std::byte> bytes() const = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // "in_process", "shared_memory", "mpi", "gloo", "nccl" or a registered name.
  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Returns true if Run supports this kind of collective.
  virtual bool Implements(OpKind kind) const = 0;

  // Returns true if Run's reductions fold the inputs from left to right in rank
  // order and round once, so that results do not depend on size or chunks.
  virtual bool FoldsInRankOrder() const { return false; }

  // True if operations take no time, for example because they are only counted.
  // Then no operation is started on another thread, and a started message stays
  // in flight until it is waited for.
  virtual bool TakesNoTime() const { return false; }

  // Called before and after every collective, also those executed over the
  // transport, so that an engine can publish this rank's state to its peers.
  virtual void Enter(OperationContext&) {}
  virtual void Leave(OperationContext&) {}

  // Executes a valid collective for which Implements returns true. Returns when
  // this rank's part is done and its buffers may be reused. Errors are those of
  // Transport::Wait; after an error the group is broken.
  virtual absl::Status Run(const Operation& operation,
                           OperationContext& context) = 0;

  // Null if the engine has no point-to-point messages.
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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ENGINE_H_
