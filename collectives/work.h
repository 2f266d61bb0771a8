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
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::collectives {

// The state shared by Work and the thread that executes the operation.
class WorkState {
 public:
  // Completes the operation and wakes all waiters. Called once.
  void Finish(absl::Status status);

  // Called once instead of Finish: the operation completes at the first wait.
  void FinishWhenWaitedFor(absl::Status status);

  bool done() const { return done_.load(std::memory_order_acquire); }
  const absl::Status& status() const { return status_; }  // Valid if done.

  // Waits until `deadline`; returns false if the operation is still running.
  bool WaitUntil(absl::Time deadline);

 private:
  std::atomic<bool> done_ = false;
  std::atomic<bool> waits_for_waiter_ = false;
  absl::Status status_;
  std::mutex mutex_;
  std::condition_variable finished_;
};

class Work {
 public:
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Waits until the operation completes and returns its status. Takes no longer
  // than the operation's own deadline.
  absl::Status Wait() const;

  // Returns true if the operation succeeded, false while it is running, its
  // error if it failed. Does not wait.
  absl::StatusOr<bool> Test() const;

  // Like Wait, but returns DeadlineExceeded after `timeout`; the operation
  // continues.
  absl::Status WaitFor(absl::Duration timeout) const;

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_WORK_H_
