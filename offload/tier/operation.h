// Operation: an asynchronous operation that ends with a status. Also the
// threads that run blocking work as Operations (WorkerPool).
//
//   Operation load = tier.StartGet("layer.4", buffer);
//   Compute(layer3);
//   TESSERA_RETURN_IF_ERROR(load.Wait());
//
// The implementation holds the Completion:
//
//   auto [operation, completion] = Operation::Pending();
//   engine.Submit(..., [c = completion](absl::Status s) { c.Finish(s); });
//   return std::move(operation);
#ifndef TESSERA_OFFLOAD_TIER_OPERATION_H_
#define TESSERA_OFFLOAD_TIER_OPERATION_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tessera::offload {

namespace operation_internal {

struct State {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
  std::vector<std::function<void(const absl::Status&)>> listeners
      ABSL_GUARDED_BY(mutex);
};

}  // namespace operation_internal

// Finishes an Operation. Copies share one Operation; the first Finish counts.
class Completion {
 public:
  // Ends the operation and calls its listeners on this thread.
  void Finish(absl::Status status) const;

 private:
  friend class Operation;
  explicit Completion(std::shared_ptr<operation_internal::State> state)
      : state_(std::move(state)) {}

  std::shared_ptr<operation_internal::State> state_;
};

// A handle of an operation, whose buffers are in use until it is done.
// Move-only. The destructor waits and ignores the status. Safe for concurrent
// use, except for moves.
class [[nodiscard]] Operation {
 public:
  // Already done, with `status`.
  explicit Operation(absl::Status status = absl::OkStatus())
      : status_(std::move(status)) {}
  ~Operation();
  Operation(Operation&& other) noexcept;
  Operation& operator=(Operation&& other) noexcept;

  static std::pair<Operation, Completion> Pending();

  // Returns true if it is done. Never blocks.
  bool Test() const;
  // Blocks until it is done. Returns the same status at every call.
  absl::Status Wait() const;
  // Calls `listener` once: at once if the operation is done, otherwise on the
  // thread that finishes it. A listener must be quick and must not wait for
  // operations of the same tier.
  void OnDone(std::function<void(const absl::Status&)> listener) const;

 private:
  std::shared_ptr<operation_internal::State> state_;  // null if done
  absl::Status status_;                               // if state_ is null
};

// Threads that run blocking work as Operations.
//
//   WorkerPool pool(2);
//   Operation op = pool.Run([&] { return tier.Put(key, bytes, info); });

// Safe for concurrent use. The destructor finishes all queued work.
class WorkerPool {
 public:
  // At least one thread.
  explicit WorkerPool(int threads);
  ~WorkerPool();

  // Starts work in the order of the calls. Work must not wait for work that is
  // queued after it.
  Operation Run(std::function<absl::Status()> work);

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_OPERATION_H_
