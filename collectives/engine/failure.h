// Failure: the first error of a group, kept for everybody who asks later.
//
//   if (failure.failed()) return failure.status();
//   failure.Set(absl::AbortedError("..."));
#ifndef TESSERA_COLLECTIVES_ENGINE_FAILURE_H_
#define TESSERA_COLLECTIVES_ENGINE_FAILURE_H_

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace tessera::collectives {

// Thread-safe. failed() costs one load.
class Failure {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // OK until something failed.
  absl::Status status() const {
    if (!failed()) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    return status_;
  }

  // True where this is the first error; later ones change nothing. `status` is
  // not OK.
  bool Set(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = status;
    failed_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_FAILURE_H_
