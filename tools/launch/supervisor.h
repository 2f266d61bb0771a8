// Supervisor: waits for started ranks, hands their output and signals on, and
// ends them all when it is time.
#ifndef TESSERA_TOOLS_LAUNCH_SUPERVISOR_H_
#define TESSERA_TOOLS_LAUNCH_SUPERVISOR_H_

#include <poll.h>

#include <chrono>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/launch/multiplexer.h"
#include "tools/launch/plan.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"

namespace tessera::tools {

class Supervisor {
 public:
  // All are borrowed.
  Supervisor(const LaunchPlan& plan, const SignalWatch& signals,
             RankProcesses& ranks, OutputMultiplexer& output);

  // Returns when no process is left and all output is written; see Launch.
  // Call it once.
  absl::StatusOr<LaunchOutcome> Run();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // Waits for something to happen, and handles it.
  void Step();
  int PollMillis() const;
  void HandleSignals();
  void HandleSignal(int signal);
  void HandleEndingSignal(int signal);
  void HandleExits();
  void NoteFailure(const RankExit& exit);
  void HandleTimers();

  // Tells all ranks to end, by `signal`, and from when on they must.
  void BeginEnd(int signal);
  void Kill();
  // Stops the ranks and this process until it is continued.
  void Pause();

  absl::StatusOr<LaunchOutcome> Finish();

  const LaunchPlan& plan_;
  const SignalWatch& signals_;
  RankProcesses& ranks_;
  OutputMultiplexer& output_;

  LaunchOutcome outcome_;
  absl::Status output_status_;
  bool is_ending_ = false;
  bool is_impatient_ = false;  // SIGINT came while ending.
  std::optional<Time> timeout_at_;
  std::optional<Time> kill_at_;    // When the grace is over.
  std::optional<Time> settle_at_;  // When the first failure is known.
  std::optional<Time> reap_at_;    // Descendants may have ended.
  std::vector<pollfd> fds_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_SUPERVISOR_H_
