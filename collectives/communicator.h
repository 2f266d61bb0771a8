// Communicator: a group of ranks that exchange and reduce data.
//
//   // Every rank of the group calls this with its own `gradients`.
//   absl::Status Step(Communicator& communicator,
//                     std::vector<float>& gradients,
//                     std::span<const float> mine, std::span<float> all) {
//     // Blocking: afterwards `gradients` holds the average over all ranks.
//     TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
//         Buffer(std::span(gradients)), Reduction::Average()));
//     // Non-blocking: runs while this thread computes.
//     TESSERA_ASSIGN_OR_RETURN(
//         Work work,
//         communicator.Start(AllGatherOf(ConstBuffer(mine), Buffer(all))));
//     Compute();
//     return work.Wait();  // Afterwards `all` may be read.
//   }
//
// Every rank of the group calls the same collectives in the same order with
// matching arguments. A blocking call returns when this rank's buffers may be
// reused. Send and Receive match by rank and order only: the n-th message from
// a to b is the n-th message that b receives from a. With a tag (SendOf,
// ReceiveOf) a receive takes the first message that has its tag, from one rank
// or from any; it never takes a message without a tag. mpi and devices do not
// support tags.
//
// Errors. InvalidArgument and Unimplemented: this call is invalid or not
// supported; no side effects, and the communicator stays usable. Any other
// error breaks the group for all of its ranks: DeadlineExceeded (some ranks did
// not call in time; the message names them and their last operation),
// Unavailable (a rank died), FailedPrecondition (ranks called different
// operations; the message shows both), Aborted. Later calls fail with
// FailedPrecondition and repeat the first error.
//
// On a device (CreateOnDevice) Start enqueues operations on device memory, in
// the order of the calls. An operation that fails on the device also breaks the
// group. The device may then execute later work on undefined data, so results
// are valid only if status() is OK after the host has waited. host() is a
// communicator of the same ranks for host memory; an error in either of the two
// breaks both.
//
// Threads: thread-safe. Collectives of one communicator run one at a time in
// the order of the calls, so threads that share a communicator must agree on an
// order that is the same on every rank. Messages run concurrently with
// collectives. After fork, calls in the child fail.
#ifndef TESSERA_COLLECTIVES_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/lanes.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/engine/tagged_messages.h"
#include "collectives/operation/operation.h"
#include "collectives/options.h"
#include "collectives/record/flight_recorder.h"
#include "collectives/work.h"

namespace tessera::collectives {

class Communicator;

// A collective that Communicator::Prepare has validated, matched between the
// ranks and planned, to run many times on the same buffers:
//
//   const Buffer buffer(std::span(&norm, 1));
//   TESSERA_ASSIGN_OR_RETURN(
//       PreparedOperation sum,
//       communicator.Prepare(AllReduceOf(buffer, buffer, Reduction::Sum())));
//   for (int step = 0; step < steps; ++step) {
//     norm = OwnNorm();
//     TESSERA_RETURN_IF_ERROR(sum.Run());  // Now `norm` is the sum.
//   }
//
// Run is Communicator::Run of the operation, with the same errors. Over memory
// that the ranks share, a message below Tuning::zero_copy_bytes (16 KiB) costs
// little more than moving it between caches: a run that ends while it spins
// takes no lock, reads no clock, and is only counted; one of 64 is timed
// (FlightRecorder::Runs). Any other run is recorded when its spin ends, and its
// deadline counts from then. On other engines, and for longer messages, Run
// costs what Communicator::Run does.
//
// Prepared and other operations may be mixed on a communicator, which must
// outlive its prepared operations. One thread at a time calls Run.
class PreparedOperation {
 public:
  PreparedOperation(PreparedOperation&&) noexcept;
  PreparedOperation& operator=(PreparedOperation&&) noexcept;
  ~PreparedOperation();

  absl::Status Run();

 private:
  friend class Communicator;
  struct State;
  explicit PreparedOperation(std::unique_ptr<State> state);
  bool HasBuffersOf(const Operation& operation) const;
  absl::Status RunPlan();

  std::unique_ptr<State> state_;
};

class Communicator {
 public:
  // Creates this rank's communicator on `engine`. All ranks must give the same
  // options except for dump_directory. InvalidArgument if an option is invalid.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      std::unique_ptr<Engine> engine, CommunicatorOptions options = {});

  // Creates a communicator with the ranks, options and name of `host`, which it
  // owns, on an engine that enqueues operations on a device. InvalidArgument if
  // the engine does not enqueue, or its rank or size differs from that of
  // `host`.
  static absl::StatusOr<std::unique_ptr<Communicator>> CreateOnDevice(
      std::unique_ptr<Communicator> host, std::unique_ptr<Engine> engine);

  // Waits for started operations (at most until their deadlines), then leaves
  // the group.
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return engine_->rank(); }
  int64_t size() const { return engine_->size(); }
  const std::string& name() const { return options_.name; }
  std::string_view engine_name() const { return engine_->name(); }
  const CommunicatorOptions& options() const { return options_; }

  // Blocking calls. A table in collectives/operation/operation.h lists their
  // inputs and outputs and the forms that may work in place. Overloads with a
  // single buffer work in place.
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
  // Receives the first message with `tag`, and returns the rank that sent it.
  absl::StatusOr<Rank> ReceiveFromAny(Buffer output, int32_t tag,
                                      const CallOptions& call = {});
  absl::Status SendReceive(ConstBuffer input, Rank destination, Buffer output,
                           Rank source, const CallOptions& call = {}) {
    return Run(SendReceiveOf(input, destination, output, source), call);
  }

  // Run executes any operation and waits for it. Start returns at once; the
  // operation runs on a thread of the communicator. Collectives run in the
  // order of the calls to Run and Start.
  //
  // On a device Start enqueues the operation. It begins after `call.after`, and
  // its timeout counts from then. Run also makes the host wait, for tests and
  // rare use. Errors of devices that check their work report `place`.
  absl::Status Run(const Operation& operation, const CallOptions& call = {},
                   SourcePlace place = SourcePlace::current());
  absl::StatusOr<Work> Start(Operation operation, const CallOptions& call = {},
                             SourcePlace place = SourcePlace::current());

  // Prepares a collective that runs many times. A collective call, itself an
  // all_gather of host(). FailedPrecondition on all ranks if they prepare
  // different operations; the group stays usable. `call` has the timeout of
  // each run and the algorithm, which is otherwise chosen now. InvalidArgument
  // for messages, and with on_done or after.
  absl::StatusOr<PreparedOperation> Prepare(Operation operation,
                                            const CallOptions& call = {});

  // Runs `prepared`, which the first call prepares: it is empty on all ranks or
  // on none. InvalidArgument if `operation` has other buffers than before.
  //
  //   std::optional<PreparedOperation> sum_;  // A member, with the buffer.
  //   communicator.RunPrepared(sum_, AllReduceOf(norm_, norm_, ...));
  absl::Status RunPrepared(std::optional<PreparedOperation>& prepared,
                           const Operation& operation,
                           const CallOptions& call = {});

  // Like Run and Start, but ordered with `queue`: the operation begins after
  // the work that was already enqueued there. After RunOn, later work on the
  // queue begins after the operation. After StartOn the caller must call
  // `queue.Wait(work.event())` before any use of the buffers. The host waits
  // only on an engine of the host.
  absl::Status RunOn(Queue& queue, const Operation& operation,
                     const CallOptions& call = {},
                     SourcePlace place = SourcePlace::current());
  absl::StatusOr<Work> StartOn(Queue& queue, Operation operation,
                               CallOptions call = {},
                               SourcePlace place = SourcePlace::current());

  // The communicator of the same ranks for host memory (agreements, sizes,
  // statistics): this one, unless its engine enqueues on a device.
  Communicator& host() { return host_ == nullptr ? *this : *host_; }

  // A collective that splits the group: ranks that give the same `colour` form
  // a new group, ordered by `key`, then by rank. Returns null if `colour` is
  // negative.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int64_t colour, int64_t key, std::string_view name = "");

  // Creates a group of `members`, in this order. Only the members call it. The
  // new group shares no traffic, order or errors with this one and may outlive
  // it. On a device it has its own host(), and a device error ends the work of
  // all groups on that device. `timeout` is the limit of this call and the
  // default of the group's operations; without it that of this group.
  absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      std::span<const Rank> members, std::string_view name = "",
      std::optional<absl::Duration> timeout = std::nullopt);

  // Allocates memory on which this engine's collectives are fastest (device
  // memory if the engine enqueues). A local call, not a collective.
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(int64_t bytes) {
    return engine_->AllocateShared(bytes);
  }

  // Breaks the group: waiting calls on this rank, and on all ranks that the
  // engine can reach, return Aborted with `reason`. Any thread may call it.
  void Abort(std::string_view reason);
  // Like Abort, but waiting calls return `reason` itself.
  void Break(const absl::Status& reason);

  // Calls `on_break` on any thread when the group breaks, possibly twice, or
  // immediately if it is already broken. A null callback unregisters the
  // current one, after any running call returns.
  void OnBreak(std::function<void(const absl::Status&)> on_break);

  // OK, or the error that broke the group.
  absl::Status status() const;

  // The algorithm that would execute an operation, and the reason.
  absl::StatusOr<Algorithm> AlgorithmFor(const Operation& operation) const;
  std::string ExplainAlgorithm(const Operation& operation) const;

  // The known state of every rank, in rank order.
  std::vector<PeerReport> Peers() const { return engine_->Peers(); }

  // The recorded operations (collectives/record/flight_recorder.h): totals per
  // operation and algorithm, the most recent operations, and both as JSON. On a
  // device the recorded time of a started operation covers only enqueueing, and
  // its algorithm is kEngine unless the call gives one. Any thread may call
  // these.
  StatisticsTable Statistics() const { return recorder_.Statistics(); }
  // Includes all groups that were split from this one, and from those, also if
  // they no longer exist; on a device also the operations of their host().
  StatisticsTable StatisticsWithSubgroups() const;
  std::vector<OperationRecord> RecentOperations() const {
    return recorder_.Recent();
  }
  std::string RecordsAsJson() const;

 private:
  friend class PreparedOperation;

  // An operation that was enqueued on a device.
  struct Enqueued {
    Event done;
    OperationRecord record;
    uint64_t ticket = 0;
  };

  Communicator(std::unique_ptr<Engine> engine, CommunicatorOptions options,
               uint32_t group, std::unique_ptr<Communicator> host,
               const FlightRecorder* parent = nullptr);

  absl::Status CheckUsable() const;
  absl::Status CheckCall(const Operation& operation,
                         const CallOptions& call) const;
  absl::Status CheckMessage(const Operation& operation) const;
  absl::Status MatchPrepared(const Signature& mine);
  int64_t DeadlineOf(const CallOptions& call, int64_t begin) const;
  int64_t BytesOf(const Operation& operation) const;
  ChoiceQuestion QuestionOf(const Operation& operation, int64_t bytes) const;
  Work StartCollective(Operation operation, const CallOptions& call,
                       int64_t deadline);
  absl::Status RunCollective(const Operation& operation,
                             const CallOptions& call, int64_t begin,
                             int64_t deadline);
  absl::Status RunWith(Algorithm algorithm, const Operation& operation,
                       OperationContext& context);
  absl::StatusOr<Enqueued> Enqueue(const Operation& operation,
                                   const CallOptions& call,
                                   const SourcePlace& place);
  void EndRecord(Enqueued& enqueued, const absl::Status& status);
  absl::Status RunOnDevice(const Operation& operation, const CallOptions& call,
                           const SourcePlace& place);
  absl::Status BreakOnError(absl::Status status);
  void WriteDump(const absl::Status& reason) const;
  RecordedGroup Recorded() const;

  const std::unique_ptr<Communicator> host_;  // Null on an engine of the host.
  const std::unique_ptr<Engine> engine_;
  const CommunicatorOptions options_;
  const uint32_t group_;
  const uint64_t generation_;
  const int64_t ranks_per_host_;
  const int64_t timeout_ns_;
  FlightRecorder recorder_;

  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();

  std::mutex on_break_mutex_;
  std::function<void(const absl::Status&)> on_break_;
  bool is_host_of_device_ = false;

  std::mutex enqueue_mutex_;  // Orders operations on a device.
  // Used only by the thread that holds the collective lane or enqueue_mutex_.
  uint64_t sequence_ = 0;
  Scratch scratch_;

  std::mutex subgroups_mutex_;
  absl::flat_hash_map<uint32_t, uint32_t> subgroups_;  // Count by hash.

  // Null without a transport and on a device.
  std::unique_ptr<MessageLane> messages_;
  std::unique_ptr<TaggedMessages> tagged_;  // Null if it cannot peek.
  std::unique_ptr<CollectiveLane> collectives_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_COMMUNICATOR_H_
