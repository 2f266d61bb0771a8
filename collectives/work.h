// Work: a handle to an operation that was started with Communicator::Start.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Work work, communicator.Start(AllReduceOf(input, output,
//                                                 Reduction::Sum())));
//   Compute();                             // Overlaps with the all-reduce.
//   TESSERA_RETURN_IF_ERROR(work.Wait());  // Now `output` may be read.
//
// Copies refer to the same operation. Destroying the handle does not stop the
// operation; its buffers must stay valid until it completes. Thread-safe.
#ifndef TESSERA_COLLECTIVES_WORK_H_
#define TESSERA_COLLECTIVES_WORK_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "collectives/engine/peer_table.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Publishes when the calling thread waits for other ranks, in a blocking call
// of a Communicator or for a started operation: `since` is CoarseNanos while it
// waits, otherwise 0. Null stops that.
//
//   std::atomic<int64_t> since;
//   WatchWaits(&since);  // of this thread, until WatchWaits(nullptr)
void WatchWaits(std::atomic<int64_t>* since);

// CLOCK_MONOTONIC with a resolution of some milliseconds, in a few nanoseconds.
int64_t CoarseNanos();

// The calling thread waits while an object exists.
class WaitMark {
 public:
  WaitMark();
  ~WaitMark();
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  std::atomic<int64_t>* since_;  // Null if nothing is stored.
};

// The state shared by Work and the host thread that executes the operation.
class WorkState final : public EventState {
 public:
  // Completes the operation and wakes all waiters. Called once.
  void Finish(absl::Status status);

  // Called once instead of Finish: the operation completes at the first wait.
  void FinishWhenWaitedFor(absl::Status status);

  absl::StatusOr<bool> Test() override;
  absl::Status Wait() override;

  bool done() const { return done_.load(std::memory_order_acquire); }
  const absl::Status& status() const { return status_; }  // Valid if done.

  // Returns false if the operation is still running after `timeout`.
  bool WaitAtMost(absl::Duration timeout);

 private:
  std::atomic<bool> done_ = false;
  std::atomic<bool> waits_for_waiter_ = false;
  absl::Status status_;
  std::mutex mutex_;
  std::condition_variable finished_;
};

using topology::Rank;

class Work {
 public:
  explicit Work(std::shared_ptr<EventState> state) : event_(std::move(state)) {}
  // An operation on a device. `group` reports errors that the event does not.
  Work(Event event, std::shared_ptr<const Failure> group)
      : event_(std::move(event)), group_(std::move(group)) {}

  // Waits until the operation completes and returns its status. Takes no longer
  // than the operation's own deadline.
  absl::Status Wait() const {
    absl::Status status = event_.Wait();
    return status.ok() && group_ != nullptr ? group_->status() : status;
  }

  // Returns true if the operation succeeded, false while it is running, its
  // error if it failed. Does not wait.
  absl::StatusOr<bool> Test() const {
    if (group_ != nullptr && group_->failed()) return group_->status();
    return event_.Test();
  }

  // Like Wait, but returns DeadlineExceeded after `timeout`; the operation
  // continues.
  absl::Status WaitFor(absl::Duration timeout) const;

  // The rank that sent the message, once a receive with a tag has completed.
  std::optional<Rank> source() const;

  // Completes with the operation. `queue.Wait(work.event())` orders later work
  // on the queue after the operation; the host waits only if the operation runs
  // on the host.
  const Event& event() const { return event_; }

 private:
  Event event_;
  std::shared_ptr<const Failure> group_;  // Null: the event reports all errors.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_WORK_H_
