// Communicator: a group of ranks that exchange and combine data.
//
//   // On every rank, one after the other or at once:
//   communicator->AllReduce(Buffer(std::span(gradients)),
//   Reduction::Average()); TESSERA_ASSIGN_OR_RETURN(
//       Work work, communicator->Start(AllGatherOf(mine, all)));
//   Compute();
//   TESSERA_RETURN_IF_ERROR(work.Wait());
//
// Collectives are called by every rank of the group, in the same order with
// matching arguments. Blocking calls return when this rank's buffers may be
// used again. Send and Receive match by rank and order alone: the n-th message
// from a to b is the n-th that b receives from a.
//
// Errors. InvalidArgument: the arguments of this call cannot be; nothing
// happened and the group is whole. Any other error breaks the group, for every
// rank in it: DeadlineExceeded (some ranks did not come: they are named, with
// what they last did), Unavailable (a rank has died), FailedPrecondition (ranks
// called different operations: both are shown), Aborted. From then on every
// call is refused with FailedPrecondition that repeats the reason.
//
// Threads: any thread may call. Collectives of one communicator run one at a
// time in the order of the calls, so calls from several threads need an order
// of their own that is the same on every rank; messages run beside them.
// A communicator must not be used in a child that the process forked: calls are
// refused there.
#ifndef TESSERA_COLLECTIVES_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/collective_lane.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/message_lane.h"
#include "collectives/engine/scratch.h"
#include "collectives/operation/operation.h"
#include "collectives/options.h"
#include "collectives/record/dump.h"
#include "collectives/record/flight_recorder.h"
#include "collectives/work.h"

namespace tessera::collectives {

class Communicator {
 public:
  // One rank's seat in the group of `engine`; all ranks give the same options
  // but for dump_directory. InvalidArgument where an option cannot be.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      std::unique_ptr<Engine> engine, CommunicatorOptions options = {});

  // Waits until what was started is done (its deadlines bound this), then
  // leaves the group.
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return engine_->rank(); }
  int64_t size() const { return engine_->size(); }
  const std::string& name() const { return options_.name; }
  std::string_view engine_name() const { return engine_->name(); }
  const CommunicatorOptions& options() const { return options_; }

  // The blocking calls. What each reads and writes, and what in place means:
  // collectives/operation/operation.h. The forms with one buffer work in place.
  absl::Status AllReduce(ConstBuffer input, Buffer output, Reduction reduction,
                         const CallOptions& call = {}) {
    return Run(AllReduceOf(input, output, reduction), call);
  }
  absl::Status AllReduce(Buffer buffer, Reduction reduction,
                         const CallOptions& call = {}) {
    return Run(AllReduceOf(buffer, buffer, reduction), call);
  }
  absl::Status Reduce(ConstBuffer input, Buffer output, Reduction reduction,
                      Rank root, const CallOptions& call = {}) {
    return Run(ReduceOf(input, output, reduction, root), call);
  }
  absl::Status ReduceScatter(ConstBuffer input, Buffer output,
                             Reduction reduction,
                             const CallOptions& call = {}) {
    return Run(ReduceScatterOf(input, output, reduction), call);
  }
  absl::Status ReduceScatterUneven(ConstBuffer input,
                                   std::span<const int64_t> counts,
                                   Buffer output, Reduction reduction,
                                   const CallOptions& call = {}) {
    return Run(ReduceScatterOf(input, output, reduction,
                               {counts.begin(), counts.end()}),
               call);
  }
  absl::Status AllGather(ConstBuffer input, Buffer output,
                         const CallOptions& call = {}) {
    return Run(AllGatherOf(input, output), call);
  }
  absl::Status AllGatherUneven(ConstBuffer input, Buffer output,
                               std::span<const int64_t> counts,
                               const CallOptions& call = {}) {
    return Run(AllGatherOf(input, output, {counts.begin(), counts.end()}),
               call);
  }
  absl::Status Broadcast(Buffer buffer, Rank root,
                         const CallOptions& call = {}) {
    return Run(BroadcastOf(buffer, buffer, root), call);
  }
  absl::Status Broadcast(ConstBuffer input, Buffer output, Rank root,
                         const CallOptions& call = {}) {
    return Run(BroadcastOf(input, output, root), call);
  }
  absl::Status Gather(ConstBuffer input, Buffer output, Rank root,
                      const CallOptions& call = {}) {
    return Run(GatherOf(input, output, root), call);
  }
  absl::Status Scatter(ConstBuffer input, Buffer output, Rank root,
                       const CallOptions& call = {}) {
    return Run(ScatterOf(input, output, root), call);
  }
  absl::Status AllToAll(ConstBuffer input, Buffer output,
                        const CallOptions& call = {}) {
    return Run(AllToAllOf(input, output), call);
  }
  absl::Status AllToAllUneven(ConstBuffer input,
                              std::span<const int64_t> send_counts,
                              Buffer output,
                              std::span<const int64_t> receive_counts,
                              const CallOptions& call = {}) {
    return Run(
        AllToAllOf(input, output, {send_counts.begin(), send_counts.end()},
                   {receive_counts.begin(), receive_counts.end()}),
        call);
  }
  absl::Status Barrier(const CallOptions& call = {}) {
    return Run(BarrierOf(), call);
  }
  absl::Status Send(ConstBuffer input, Rank destination,
                    const CallOptions& call = {}) {
    return Run(SendOf(input, destination), call);
  }
  absl::Status Receive(Buffer output, Rank source,
                       const CallOptions& call = {}) {
    return Run(ReceiveOf(output, source), call);
  }
  absl::Status SendReceive(ConstBuffer input, Rank destination, Buffer output,
                           Rank source, const CallOptions& call = {}) {
    return Run(SendReceiveOf(input, destination, output, source), call);
  }

  // Any operation, blocking, and started: it goes on by itself, on a thread of
  // the communicator. Collectives keep the order in which they were given,
  // whether run or started.
  absl::Status Run(const Operation& operation, const CallOptions& call = {});
  absl::StatusOr<Work> Start(Operation operation, const CallOptions& call = {});

  // The ranks that give the same `colour`, in the order of `key`, then of rank:
  // a collective over this group. Null where `colour` is negative.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int64_t colour, int64_t key, std::string_view name = "");

  // The group of `members`, in this order; only they call. It does not share
  // traffic, order or errors with this group, and may outlive it.
  absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      std::span<const Rank> members, std::string_view name = "");

  // Memory on which this engine's collectives are fastest. Not a collective.
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(int64_t bytes) {
    return engine_->AllocateShared(bytes);
  }

  // Breaks the group: every waiting call, here and where the engine can reach,
  // returns Aborted with `reason`. From any thread.
  void Abort(std::string_view reason);

  // OK, or what broke the group.
  absl::Status status() const;

  // The algorithm that an operation would take, and why.
  absl::StatusOr<Algorithm> AlgorithmFor(const Operation& operation) const;
  std::string ExplainAlgorithm(const Operation& operation) const;

  // What ran: totals per operation and algorithm, the last operations, as JSON,
  // as events of a trace (collectives/record/dump.h). `world_rank` names this
  // process in the trace. From any thread.
  StatisticsTable Statistics() const { return recorder_.Statistics(); }
  std::vector<OperationRecord> RecentOperations() const {
    return recorder_.Recent();
  }
  std::string RecordsAsJson() const;
  std::string TraceEvents(int64_t world_rank) const;

 private:
  Communicator(std::unique_ptr<Engine> engine, CommunicatorOptions options,
               uint32_t group);

  absl::Status CheckUsable() const;
  absl::Status CheckCall(const Operation& operation,
                         const CallOptions& call) const;
  int64_t DeadlineOf(const CallOptions& call, int64_t begin) const;
  ChoiceQuestion QuestionOf(const Operation& operation) const;
  Algorithm Choose(const Operation& operation) const;
  absl::Status Carry(const Operation& operation, const CallOptions& call,
                     int64_t begin, int64_t deadline);
  absl::Status CarryOut(const Operation& operation, Algorithm algorithm,
                        OperationContext& context);
  absl::Status Settle(absl::Status status);
  void Break(const absl::Status& reason);
  void WriteDump(const absl::Status& reason) const;
  RecordedGroup Recorded(int64_t world_rank) const;

  const std::unique_ptr<Engine> engine_;
  const CommunicatorOptions options_;
  const uint32_t group_;
  const uint64_t generation_;
  const int64_t ranks_per_host_;
  const int64_t timeout_ns_;
  FlightRecorder recorder_;

  std::atomic<bool> broken_ = false;
  mutable std::mutex status_mutex_;
  absl::Status status_;

  // Of the collective lane.
  uint64_t sequence_ = 0;
  Scratch scratch_;

  std::mutex subgroups_mutex_;
  absl::flat_hash_map<uint32_t, uint32_t> subgroups_;  // Members: how often.

  std::unique_ptr<MessageLane> messages_;  // Null without a transport.
  std::unique_ptr<CollectiveLane> collectives_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_COMMUNICATOR_H_
