// Interleaver: alternates between two tasks of a rank, so that one computes
// while the other waits for a message.
//
//   Interleaver interleaver;
//   TESSERA_RETURN_IF_ERROR(interleaver.Run(forward, backward));
//   // In a task, after it has started a message and before it waits:
//   interleaver.Yield();
//
// Only one task runs at a time, starting with the first; the other resumes when
// the running one yields or ends. So the data they share need no locks, and
// tasks that yield at the same points run in the same order on every rank, so
// that they may call collectives. Shared data may have changed when Yield
// returns.
//
// A second task that begins after the first one yielded runs on another thread.
#ifndef TESSERA_PIPELINE_EXECUTE_INTERLEAVER_H_
#define TESSERA_PIPELINE_EXECUTE_INTERLEAVER_H_

#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tessera::pipeline {

class Interleaver {
 public:
  Interleaver() = default;
  ~Interleaver();
  Interleaver(const Interleaver&) = delete;
  Interleaver& operator=(const Interleaver&) = delete;

  // Runs both tasks to their end. Returns the error of the first if it failed,
  // otherwise the status of the second. The second is not started if the first
  // fails before it yields. Not thread-safe, and not to be called within a
  // task.
  absl::Status Run(absl::FunctionRef<absl::Status()> first,
                   absl::FunctionRef<absl::Status()> second);

  // Within a task: true if the other task has not ended.
  bool has_other() const;
  // Within a task: lets the other task run until it yields or ends. Does
  // nothing if the other has ended, or outside a task.
  void Yield();

  // Sets a listener, which the running task calls before it switches to the
  // other one: when it yields, and when it is the first to end. The listener
  // must not use this object.
  void OnSwitch(std::function<void()> listener) {
    listener_ = std::move(listener);
  }

 private:
  enum class Turn {
    kNobody,
    kFirst,
    kSecond,
    kOnlySecond,  // On the thread of the first, which never yielded.
  };

  void Work();
  // Waits for that turn, or until the interleaver closes.
  void Await(Turn turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Switch(Turn to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::function<void()> listener_ = [] {};
  mutable absl::Mutex mutex_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kNobody;
  bool has_first_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_second_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;  // The second one.
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  const absl::FunctionRef<absl::Status()>* second_ ABSL_GUARDED_BY(mutex_) =
      nullptr;
  absl::Status second_status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Runs second tasks; started with the first of them.
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_INTERLEAVER_H_
