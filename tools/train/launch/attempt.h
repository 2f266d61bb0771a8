// RunAttempt: starts all ranks of a job on this host, waits until the last has
// ended, and says how it went.
//
//   const AttemptOutcome outcome = RunAttempt(
//       settings, {.files = {"/run/.ranks"}, .program = "/proc/self/exe"});
//   if (outcome.status.ok()) Use(outcome.result);
//
// Processes for shared_memory and gloo; one process with a thread for each rank
// for in_process; mpirun for mpi. No process is left when it returns.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tools/launch/launcher.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct AttemptOptions {
  AttemptFiles files;
  std::string program;  // Which is RankProcessMain for RankArguments.
  tools::LaunchSinks sinks = {};
  bool is_terminal = false;  // Of sinks.out_fd.
};

struct AttemptOutcome {
  // OK where every rank has done its work. Otherwise one line that names the
  // rank which failed first, and why.
  absl::Status status = {};
  std::string result = "";  // Of rank 0.

  // What failed, where something did.
  std::optional<int64_t> rank = {};
  bool took_a_step = false;
  bool died = false;               // By a signal, or without a word.
  std::optional<int> signal = {};  // That ended this process's whole job.
};

// Call it on the main thread, as Launch.
AttemptOutcome RunAttempt(const Settings& settings,
                          const AttemptOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_H_
