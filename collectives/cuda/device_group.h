// DeviceGroup: the ranks of a group of the cuda engine, which are threads of
// this process.
//
// Enqueue publishes a rank's part of an operation and returns. The rank that
// publishes the last part enqueues the work of all ranks, on queues of the
// group: one for each rank, its lane, and one for each pair of ranks that
// exchanges messages.
//
//   lane r waits for    every rank's EnqueueCall::after
//   lane r launches     one kernel (lane_work.h)
//   lane r waits for    every other lane's kernel: only then has rank r's
//                       input been read and its output been written
//   lane r records      the event that rank r's Enqueue has returned
//
// A message is a copy on the receiver's device after both sides' events.
//
// Absence of deadlocks. The event that Enqueue returns becomes a device event
// when the last rank has published its part. Until then a host thread that
// makes a queue wait for the event itself waits (Event::Enqueued) until its
// peers have called Enqueue, but not until the work is done. An engine of the
// host waits at the same points until its peers have executed the operation,
// which is later. Therefore every program that terminates on an engine of the
// host terminates on this one, unless it relies on a send that completes before
// its receive is called. This includes receives started before sends, ranks
// that run ahead, and operations on several groups in any order.
//
// Errors. A timeout covers the time from the call until the last part is
// published; after that only kernels run, and kernels terminate. The rank that
// times out names the missing ranks. An error breaks the group on all ranks and
// leaves the devices usable.
#ifndef TESSERA_COLLECTIVES_CUDA_DEVICE_GROUP_H_
#define TESSERA_COLLECTIVES_CUDA_DEVICE_GROUP_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "collectives/cuda/lane_work.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// The kernels, for the GPU or emulated.
struct CollectiveKernels {
  void (*fold)(KernelStream stream, const FoldJob& fold) = nullptr;
  void (*moves)(KernelStream stream, const Moves& moves) = nullptr;
};

class PendingWork;

// Thread-safe; the ranks share it.
class DeviceGroup : public std::enable_shared_from_this<DeviceGroup> {
 public:
  DeviceGroup(int64_t size, const CollectiveKernels& kernels);

  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  const CollectiveKernels& kernels() const { return kernels_; }

  // A rank must join before its first operation. Its device must outlive its
  // membership.
  absl::Status Join(int64_t rank, Device& device);
  // Waits for the rank's operations, at most until their deadlines. Afterwards
  // operations that need this rank fail.
  void Leave(int64_t rank);

  absl::StatusOr<Event> Enqueue(int64_t rank, const Operation& operation,
                                const EnqueueCall& call);

  // Creates the group of `members` with number `number`. Every member calls it.
  // Waits for the others until `deadline` (MonotonicNanos).
  absl::StatusOr<std::shared_ptr<DeviceGroup>> Subgroup(
      int64_t rank, std::span<const Rank> members, uint32_t number,
      int64_t deadline);

  // Ends all operations that are not enqueued, on all ranks; only the first
  // call has an effect.
  void Fail(const absl::Status& reason);
  void OnError(int64_t rank, std::function<void(const absl::Status&)> on_error);

  std::vector<PeerReport> Peers() const;

 private:
  friend class PendingWork;

  // One rank's side of an operation.
  struct Part {
    Operation operation;
    Event after;
    SourcePlace place;
    Signature signature;
    std::shared_ptr<PendingWork> pending;
  };
  struct Missing {
    Signature signature;
    Phase phase = Phase::kEntering;
    std::vector<PeerReport> peers = {};
  };
  struct Member {
    Device* device = nullptr;
    std::unique_ptr<Queue> lane;
    uint64_t entered = 0;    // Collectives.
    int64_t open = 0;        // Parts of operations that are not enqueued.
    int64_t open_until = 0;  // Their latest deadline.
    bool has_left = false;
    std::mutex on_error_mutex;
    std::function<void(const absl::Status&)> on_error;
  };
  // A collective that some ranks have called, by rank.
  using Parts = std::vector<std::optional<Part>>;
  // Messages from one rank to another.
  struct Channel {
    uint64_t sent = 0;
    uint64_t received = 0;
    std::deque<Part> sends;
    std::deque<Part> receives;
    std::unique_ptr<Queue> queue;
    Event last;  // Message.
  };
  struct Meeting {
    std::shared_ptr<DeviceGroup> group;
    size_t here = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  static size_t At(int64_t rank) { return static_cast<size_t>(rank); }

  // All are called with the lock.
  absl::Status Publish(int64_t rank, const Operation& operation,
                       const EnqueueCall& call, const Event& after,
                       const std::shared_ptr<PendingWork>& pending);
  absl::Status PublishCollective(int64_t rank, Part part);
  absl::Status PublishMessage(int64_t from, int64_t to, bool is_send,
                              Part part);
  absl::Status EnqueueCollective(std::span<const Part> parts);
  absl::Status LaunchLane(int64_t lane, std::span<const Operation> operations,
                          const SourcePlace& place);
  absl::Status EnqueueMessage(int64_t from, int64_t to, Channel& channel);
  absl::Status Resolve(PendingWork& pending, Queue& queue, const Event& done);
  void CheckDeadline(const PendingWork& pending);
  absl::Status MissingError(const PendingWork& pending) const;
  Missing MissingFor(const PendingWork& pending) const;
  PeerReport ReportOf(int64_t rank) const;
  void FailThoseWhoNeed(int64_t rank);
  void SetFailed(const absl::Status& reason);

  // Called without the lock.
  void Report();

  const CollectiveKernels kernels_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;
  bool reported_ = false;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<uint64_t, Parts> collectives_;                    // By number.
  std::map<std::pair<int64_t, int64_t>, Channel> channels_;  // From and to.
  std::map<std::pair<uint32_t, std::vector<int64_t>>, Meeting> meetings_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CUDA_DEVICE_GROUP_H_
