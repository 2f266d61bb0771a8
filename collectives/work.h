// Work: an operation that was started and goes on by itself.
//
//   TESSERA_ASSIGN_OR_RETURN(Work work, communicator.Start(AllReduceOf(...)));
//   Compute();                             // the operation goes on meanwhile
//   TESSERA_RETURN_IF_ERROR(work.Wait());  // now the output may be read
//
// A handle: copies are the same operation. Dropping it does not stop the
// operation; the buffers must live until it is done. Thread-safe.
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

// What a Work and those who carry it out share.
class WorkState {
 public:
  // Called once; frees all waiters.
  void Finish(absl::Status status);

  // Called once, instead: the operation is done as soon as somebody waits.
  void FinishWhenWaitedFor(absl::Status status);

  bool done() const { return done_.load(std::memory_order_acquire); }
  const absl::Status& status() const { return status_; }  // Once done.

  // False where it is not done by then.
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

  // Returns when the operation is done, with its status. The operation's own
  // deadline bounds this.
  absl::Status Wait() const;

  // True when it is done and succeeded, false while it goes on, its error when
  // it failed. Does not wait.
  absl::StatusOr<bool> Test() const;

  // As Wait, but gives up after `timeout` with DeadlineExceeded; the operation
  // goes on.
  absl::Status WaitFor(absl::Duration timeout) const;

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_WORK_H_
