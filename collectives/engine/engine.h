// Engine: one rank's membership of one group, on one way of moving bytes
// (threads, shared memory, MPI, Gloo, NCCL, your own). Communicator is what
// users hold; an engine is what it stands on.
//
// An engine must bring a Transport or implement every kind itself: what it does
// not implement, Communicator carries out with an algorithm over the transport.
// Communicator validates operations, numbers them, chooses the algorithm, keeps
// the order, counts, and refuses further work after an error: an engine need
// not.
//
// Threads: Run is called by one thread at a time, in the same order on all
// ranks of the group. transport() may be used at the same time (see there).
// Abort and Peers may be called from any thread at any time.
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

// Memory that an engine's ranks can reach without staging. Owned: given back
// when the value dies, which must be before its communicator does.
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

  // Whether Run carries out this kind of collective.
  virtual bool Implements(OpKind kind) const = 0;

  // Whether Run's reductions are left folds over the ranks' inputs in the order
  // of ranks, rounded once: the same bits whatever the size and the chunks.
  virtual bool FoldsInRankOrder() const { return false; }

  // True if operations take no time, for example because they are only counted.
  // Then none is started on another thread, and a started message counts as
  // under way until it is waited for: the latest possible end.
  virtual bool TakesNoTime() const { return false; }

  // Called around every collective, whoever carries it out, so that an engine
  // whose peers can see it may publish what this rank is in.
  virtual void Enter(OperationContext&) {}
  virtual void Leave(OperationContext&) {}

  // Carries out a valid collective operation with the engine's own means.
  // Returns when this rank's part is done and its buffers may be reused. Errors
  // as Transport::Wait. After an error the group is broken.
  virtual absl::Status Run(const Operation& operation,
                           OperationContext& context) = 0;

  // Null where the engine has no point-to-point messages.
  virtual Transport* transport() = 0;

  // A new group of `members` (ranks of this group, distinct, this rank among
  // them; their order is the new group's). Only the members call, all with the
  // same list, in the same order where their lists are the same. Waits for the
  // other members until `deadline` (MonotonicNanos). `group` is the new group's
  // number, the same on all members.
  virtual absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline) = 0;

  // Memory on which this engine's collectives are fastest; local, not a
  // collective. Aligned to 64 bytes. Engines that know no such memory give
  // ordinary memory. ResourceExhausted where there is not enough, naming how
  // much there is.
  virtual absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) = 0;

  // Frees every waiter of this group, on every rank that can be told, with
  // `reason`; whatever is called later fails with it. `reason` is not OK.
  virtual void Abort(const absl::Status& reason) = 0;

  // What is known of every rank of the group, in the order of ranks.
  virtual std::vector<PeerReport> Peers() const = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ENGINE_H_
