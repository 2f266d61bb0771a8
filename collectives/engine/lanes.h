// The execution of one communicator's operations: CollectiveLane runs its
// collectives, MessageLane its point-to-point messages.
#ifndef TESSERA_COLLECTIVES_ENGINE_LANES_H_
#define TESSERA_COLLECTIVES_ENGINE_LANES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

// Runs the collectives of one communicator, or other jobs that need the same
// order on all ranks, one at a time.
//
// A blocking collective runs on the caller's thread if the lane is free.
// Non-blocking collectives run on the lane's own thread, created when first
// needed, so that they progress while the caller computes.
class CollectiveLane {
 public:
  CollectiveLane() = default;
  // Waits until every job has run.
  ~CollectiveLane();

  CollectiveLane(const CollectiveLane&) = delete;
  CollectiveLane& operator=(const CollectiveLane&) = delete;

  // Returns true if the lane is idle; then the caller holds it until Leave.
  // Both take no lock unless jobs are queued.
  bool TryEnter() {
    int state = kIdle;
    return state_.compare_exchange_strong(state, kHeld,
                                          std::memory_order_acquire);
  }
  void Leave() {
    int state = kHeld;
    if (!state_.compare_exchange_strong(state, kIdle,
                                        std::memory_order_release)) {
      LeaveToJobs();
    }
  }

  // Runs `job` after all earlier jobs.
  void Push(std::function<void()> job);

 private:
  // Bits of state_. kQueued, set under the mutex, keeps callers out and makes
  // the one that holds the lane wake its thread.
  static constexpr int kIdle = 0, kHeld = 1, kQueued = 2;

  void LeaveToJobs();
  void RunJobs();

  std::atomic<int> state_ = kIdle;
  std::mutex mutex_;
  std::condition_variable changed_;  // Wakes the lane's own thread.
  std::deque<std::function<void()>> jobs_;
  bool closing_ = false;
  std::thread thread_;
};

// Runs the point-to-point messages of one communicator.
//
// Messages between two ranks in one direction form a channel and keep their
// order. Channels do not wait for each other, so started sends and receives
// never block each other. A blocking call on an idle channel runs on the
// caller's thread; the lane's own thread, created when first needed, progresses
// started messages.
//
// Thread-safe. A call on a channel waits while another thread is in a blocking
// call on the same channel.
class MessageLane {
 public:
  // Called once when a started operation completes.
  using Done = std::function<void(absl::Status)>;

  // `engine` must have a transport; it and `recorder` must outlive the lane.
  // `group` is the group id in the messages' signatures.
  MessageLane(Engine& engine, uint32_t group, FlightRecorder& recorder);
  // Waits until every started message has completed or failed.
  ~MessageLane();

  MessageLane(const MessageLane&) = delete;
  MessageLane& operator=(const MessageLane&) = delete;

  // Executes a valid send, receive or send_receive. `deadline` in
  // MonotonicNanos.
  absl::Status Run(const Operation& operation, int64_t deadline);

  // Like Run, but does not wait. On error nothing was started and `done` is not
  // called.
  absl::Status Start(const Operation& operation, int64_t deadline, Done done);

  // Makes all current and later messages fail with `reason` (not OK).
  void Fail(const absl::Status& reason);

 private:
  struct Pending;
  struct Channel;
  struct Half;
  class Joint;

  // A send, a receive, or one of each.
  using Halves = absl::InlinedVector<Half, 2>;

  Halves HalvesOf(const Operation& operation);
  Channel& ChannelOf(Rank peer, Direction direction);
  absl::StatusOr<Request> StartOnTransport(Channel& channel, const Half& half,
                                           Signature& signature);
  absl::Status RunHere(std::span<const Half> halves, int64_t deadline);
  absl::Status Wait(const OperationRecord& record,
                    std::span<const Request> requests, int64_t deadline);
  absl::Status StartHalf(const Half& half, int64_t deadline,
                         const std::shared_ptr<Joint>& joint);
  void WakeProgress(Channel& channel);
  void Progress();
  bool ProgressChannel(Channel& channel);
  void FinishFront(Channel& channel, absl::Status status);
  absl::Status Overdue(const Pending& pending) const;
  absl::Status failure() const;

  Engine& engine_;
  Transport& transport_;
  const uint32_t group_;
  FlightRecorder& recorder_;

  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<Channel>> channels_;  // By peer and direction.

  std::atomic<bool> failed_ = false;
  mutable std::mutex failure_mutex_;
  absl::Status failure_;

  std::mutex progress_mutex_;
  std::condition_variable work_arrived_;
  std::vector<Channel*> arrived_;  // Channels that became active.
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_LANES_H_
