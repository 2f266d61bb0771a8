// Runs a job and restarts it after a rank has died.
//
//   const AttemptOptions options = {.files = {"/run/.ranks"},
//                                   .program = "/proc/self/exe"};
//   const AttemptOutcome outcome = Supervise(settings, {
//       .attempt = [&](const Settings& s) { return RunAttempt(s, options); },
//       .last_checkpoint = [&] { return run.LastCheckpoint(); },
//       .is_valid = [](const Settings& s) { return CheckSettings(s).ok(); },
//       .notice = [](const std::string& line) { std::cerr << line; }});
//
// A failed attempt is repeated up to max_restarts times if another attempt may
// succeed: a rank died, or failed for a reason other than the job's own data
// (MayPass). All ranks restart from the newest complete checkpoint; if there is
// none, from the start of the first attempt.
//
// With --snapshot_every a rank that dies, or that does not answer while the
// others wait for it, is replaced by a new process, and the others go on from
// copies of the state in memory (checkpoint/memory_copies.h). The attempt fails
// only if that is impossible: then the ranks save their copies as a checkpoint.
// Replacements count as restarts; the last attempt has no copies.
//
// On one host the next attempt has fewer data-parallel ranks, down to --min_dp,
// if
//   - a rank ran out of a resource (ResourceExhausted: memory, disk,
//   processes),
//   - the attempt took no step, or
//   - the same rank failed in two consecutive attempts.
// On several hosts (nodes.h) it has as many as those that are there can start,
// from --min_dp to --max_dp; the host of such a rank leaves if the others
// suffice. The batch, and therefore the losses, do not change.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tools/launch/launcher.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/launch/nodes.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct AttemptOptions {
  AttemptFiles files;
  std::string program;  // Must call RankProcessMain if given RankArguments.
  // Called with a line per rank that was replaced or did not answer.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
  tools::LaunchSinks sinks = {};
  bool is_terminal = false;  // sinks.out_fd is a terminal.
  // With several nodes, of which this process starts the ranks of one: where
  // they meet. Null on one node.
  Nodes* nodes = nullptr;
};

struct AttemptOutcome {
  // OK if every rank has finished. Otherwise one line with the rank that failed
  // first and the reason.
  absl::Status status = {};
  // The result of rank 0; empty on a node without rank 0. Not empty together
  // with an error if a signal or the time limit ended the job after a
  // checkpoint.
  std::string result = "";

  // The rank that failed, if known.
  std::optional<int64_t> rank = {};
  bool took_a_step = false;
  int64_t replacements = 0;  // Of ranks, with --snapshot_every.
  bool died = false;         // A rank died by a signal or without report.
  // The data axis should shrink, if it may.
  bool needs_fewer_ranks = false;
  // A rank of this node, one of several, is the cause, and the others suffice.
  bool may_leave = false;
  bool leaves = false;  // They go on without it.
  // The ranks ended after a checkpoint, so that the data axis can grow.
  bool grows = false;
  // The signal that ended the whole job; SIGTERM also for SIGUSR1 and the time
  // limit.
  std::optional<int> signal = {};
};

// Starts all ranks of a job on this host and waits for the last one: processes
// for shared_memory and gloo, one process with a thread per rank for
// in_process, mpirun for mpi. No process is left when it returns. Call it on
// the main thread, like Launch.
AttemptOutcome RunAttempt(const Settings& settings,
                          const AttemptOptions& options);

struct JobHooks {
  std::function<AttemptOutcome(const Settings&)> attempt;
  std::function<std::string()> last_checkpoint;    // "" if there is none.
  std::function<bool(const Settings&)> is_valid;   // Accepts another mesh.
  std::function<void(const std::string&)> notice;  // One line per restart.
  bool are_nodes = false;  // The mesh depends on the nodes that are there.
};

// True if a failed attempt may succeed when repeated; false if the settings,
// the data or a file are at fault.
bool MayPass(const AttemptOutcome& outcome);

// The settings with the largest valid data axis of at most `most` ranks that
// divides the batch and is at least --min_dp; nullopt if there is none. With
// hybrid sharding the number of replicas changes.
std::optional<Settings> FitDataAxis(
    const Settings& settings, int64_t most,
    const std::function<bool(const Settings&)>& is_valid);

// The crew of at most `nodes` nodes with the largest data axis, up to --max_dp.
// Each node starts the same number of ranks, at most as many as each of
// `nodes_at_start` does with the mesh of `settings`.
std::optional<Crew> FitCrew(const Settings& settings, int64_t nodes_at_start,
                            int64_t nodes);

// Returns the outcome of the last attempt. Its message has the number of
// restarts.
AttemptOutcome Supervise(const Settings& settings, const JobHooks& hooks);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
