// Supervise: runs a job and restarts it after a rank has died.
//
//   const AttemptOptions options = {.files = {"/run/.ranks"},
//                                   .program = "/proc/self/exe"};
//   const AttemptOutcome outcome = Supervise(settings, {
//       .attempt = [&](const Settings& s) { return RunAttempt(s, options); },
//       .last_checkpoint = [&] { return run.LastCheckpoint(); },
//       .is_valid = [](const Settings& s) { return CheckSettings(s).ok(); },
//       .notice = [](const std::string& line) { std::cerr << line; }});
//
// A failed attempt is repeated up to max_restarts times if it may succeed then:
// a rank died, or failed for a reason outside of the job's own data (MayPass).
// All ranks restart from the newest complete checkpoint, or without one as the
// first attempt did.
//
// With --elastic the next attempt has fewer data-parallel ranks if
//   - a rank ran out of a resource (ResourceExhausted: memory, disk,
//   processes),
//   - the attempt took no step, or
//   - the same rank failed in two consecutive attempts.
// The data axis becomes the largest smaller size that divides the batch and
// that the settings allow. The batch does not change, so the losses do not
// either. A data axis of one rank stays.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tools/launch/launcher.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct AttemptOptions {
  AttemptFiles files;
  std::string program;  // Calls RankProcessMain if given RankArguments.
  tools::LaunchSinks sinks = {};
  bool is_terminal = false;  // sinks.out_fd is a terminal.
};

struct AttemptOutcome {
  // OK if every rank has finished. Otherwise one line that names the rank that
  // failed first, and why.
  absl::Status status = {};
  std::string result = "";  // What rank 0 returned.

  // The rank that failed, if known.
  std::optional<int64_t> rank = {};
  bool took_a_step = false;
  bool died = false;               // By a signal, or without a report.
  std::optional<int> signal = {};  // The signal that ended the whole job.
};

// Starts all ranks of a job on this host and waits for the last one: processes
// for shared_memory and gloo, one process with a thread per rank for
// in_process, mpirun for mpi. No process is left when it returns. Call it on
// the main thread, like Launch.
AttemptOutcome RunAttempt(const Settings& settings,
                          const AttemptOptions& options);

struct JobHooks {
  std::function<AttemptOutcome(const Settings&)> attempt;
  std::function<std::string()> last_checkpoint;    // "" without one.
  std::function<bool(const Settings&)> is_valid;   // For a smaller mesh.
  std::function<void(const std::string&)> notice;  // One line per restart.
};

// True if a failed attempt may succeed when repeated; false if the settings,
// the data or a file are at fault.
bool MayPass(const AttemptOutcome& outcome);

// The settings with the next smaller valid data axis; nullopt if there is none.
std::optional<Settings> ShrinkDataAxis(
    const Settings& settings,
    const std::function<bool(const Settings&)>& is_valid);

// The outcome of the last attempt; its message has the number of restarts.
AttemptOutcome Supervise(const Settings& settings, const JobHooks& hooks);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
