// Operation: something that goes on by itself and ends with a status.
//
//   Operation load = tier.StartGet("layer.4", buffer);
//   Compute(layer3);
//   TESSERA_RETURN_IF_ERROR(load.Wait());
//
// Who does the work holds the other end:
//
//   auto [operation, completion] = Operation::Pending();
//   engine.Submit(..., [c = completion](absl::Status s) { c.Finish(s); });
//   return std::move(operation);
#ifndef TESSERA_OFFLOAD_TIER_OPERATION_H_
#define TESSERA_OFFLOAD_TIER_OPERATION_H_

#include <functional>
#include <memory>
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

// The end that finishes. Copies share one Operation; the first Finish counts.
class Completion {
 public:
  // Ends the operation and calls its listeners, on this thread.
  void Finish(absl::Status status) const;

 private:
  friend class Operation;
  explicit Completion(std::shared_ptr<operation_internal::State> state)
      : state_(std::move(state)) {}

  std::shared_ptr<operation_internal::State> state_;
};

// The end that waits. Move-only: whoever owns it owns the right to assume that
// the buffers of the operation are in use until it is over. The destructor
// waits, and drops the status. Safe for concurrent use, moving excepted.
class [[nodiscard]] Operation {
 public:
  // Over already, with `status`.
  explicit Operation(absl::Status status = absl::OkStatus())
      : status_(std::move(status)) {}
  ~Operation();
  Operation(Operation&& other) noexcept;
  Operation& operator=(Operation&& other) noexcept;

  static std::pair<Operation, Completion> Pending();

  // Whether it is over. Never blocks.
  bool Test() const;
  // Blocks until it is over. The same status at every call.
  absl::Status Wait() const;
  // Calls `listener` once: now where it is over, else on the thread that
  // finishes it. A listener must be quick, and must not wait for operations of
  // the same tier.
  void OnDone(std::function<void(const absl::Status&)> listener) const;

 private:
  std::shared_ptr<operation_internal::State> state_;  // null: over
  absl::Status status_;                               // where state_ is null
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_OPERATION_H_
