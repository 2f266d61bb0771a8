// OneShot: a value that one thread waits for and another one brings.
//
//   const auto shot = std::make_shared<OneShot<int>>();
//   table.Get(..., [shot](int value) { shot->Put(value); });
//   std::optional<int> value = shot->Take(deadline);
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_ONE_SHOT_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_ONE_SHOT_H_

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera::collectives::bootstrap {

template <typename T>
class OneShot {
 public:
  void Put(T value) {
    absl::MutexLock lock(&mutex_);
    value_ = std::move(value);
  }

  // Waits for the value; nothing where the deadline comes first.
  std::optional<T> Take(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &OneShot::IsThere),
                             deadline);
    return std::exchange(value_, std::nullopt);
  }

 private:
  bool IsThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return value_.has_value();
  }

  absl::Mutex mutex_;
  std::optional<T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_ONE_SHOT_H_
