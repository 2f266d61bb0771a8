// Interleaver: runs two tasks of a rank in turn, so that one works while the
// other waits for a message.
//
//   Interleaver interleaver;
//   TESSERA_RETURN_IF_ERROR(interleaver.Run(forward, backward));
//   // In a task, after it has started a message and before it waits:
//   interleaver.Yield();
//
// One task works at a time, the first one to begin with, and the other goes on
// when this one yields or ends: what they touch needs no locks, and tasks that
// yield at the same places have the same order on every rank, so that they may
// call collectives. What a task left in shared memory may have changed when
// Yield returns.
//
// A second task that begins while the first one has yielded works on another
// thread.
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

  // Returns when both have ended, with the first one's error if it has one. The
  // second is not begun if the first fails before it yields. Called by one
  // thread at a time, not within a task.
  absl::Status Run(absl::FunctionRef<absl::Status()> first,
                   absl::FunctionRef<absl::Status()> second);

  // Within a task: true if the other one has not ended.
  bool has_other() const;
  // Within a task: the other one works until it yields or ends; nothing if it
  // has ended. Otherwise nothing.
  void Yield();

  // Called by the task that works, before the other one does: when it yields,
  // and when it is the first to end. It must not use this object.
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
  // Until it is that turn, or the end.
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
  std::thread thread_;  // Of second tasks, once there was one.
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_INTERLEAVER_H_
