// Preemption: SIGTERM, SIGUSR1 and --time_limit ask a run to end after its
// step, with a checkpoint, within --grace_period. SIGURG, of the launcher, asks
// the same, without a limit of time, if a new host joins the run.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto preemption,
//                            Preemption::Watch(settings));
//   ...
//   preemption->Begin();                  // the first step may begin
//   while (preemption->cause() == StopCause::kNone) ...  // steps
//   ...                                   // the checkpoint
//   preemption->NoteStop(StopCause::kTerminate);
//
// Causes of ranks differ, since a signal reaches them at different moments or
// only some of them: ranks must exchange them to stop after the same step.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_PREEMPTION_H_
#define TESSERA_TOOLS_TRAIN_LOOP_PREEMPTION_H_

#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Asks a rank to stop because a new host joins. It is ignored by default and
// before the first step, so that it can be sent again and again.
inline constexpr int kNewHostSignal = SIGURG;

// The largest cause of all ranks is that of the run.
enum class StopCause { kNone, kNewHost, kTimeLimit, kUserSignal, kTerminate };

// "a new host", "--time_limit", "SIGUSR1", "SIGTERM"; "" for kNone.
std::string_view StopCauseName(StopCause cause);

class Preemption {
 public:
  // 128 + SIGTERM.
  static constexpr int kExitCode = 143;

  // Handles the signals of this process until destruction. They are delivered
  // to a thread of this object, and to threads that exist already: other
  // threads inherit a mask that blocks them, so that they are not interrupted.
  // `give_up` is called before the process ends without a checkpoint. At most
  // one object may exist. InvalidArgument for times that ParseTimeSpan rejects;
  // an error of the system if there are no file descriptors.
  static absl::StatusOr<std::unique_ptr<Preemption>> Watch(
      const Settings& settings,
      std::function<void(StopCause)> give_up = [](StopCause) {});
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // From now on signals wait for a step. Until then they end the process with
  // kExitCode at once, as do afterwards a second SIGTERM and the end of the
  // grace period. Thread-safe, like the methods below.
  void Begin() { has_begun_ = true; }

  // Why this process should stop.
  StopCause cause() const { return cause_; }

  // Why the run has stopped, kNone if it has not: set by NoteStop.
  StopCause stopped_by() const { return stopped_by_; }
  void NoteStop(StopCause cause) { stopped_by_ = cause; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  Preemption() = default;
  void HandleSignals();
  void Run();
  // The next signal; 0 if none arrives until `deadline`.
  int NextSignal(Clock::time_point deadline) const;
  [[noreturn]] void GiveUp() const;

  std::function<void(StopCause)> give_up_;
  Clock::duration grace_ = {};
  Clock::time_point limit_ = kNever;
  UniqueFd reader_;
  UniqueFd writer_;
  sigset_t original_mask_ = {};
  struct sigaction original_terminate_ = {};
  struct sigaction original_user_ = {};
  struct sigaction original_new_host_ = {};
  std::atomic<bool> has_begun_ = false;
  std::atomic<StopCause> cause_ = StopCause::kNone;
  std::atomic<StopCause> stopped_by_ = StopCause::kNone;
  std::thread thread_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_PREEMPTION_H_
