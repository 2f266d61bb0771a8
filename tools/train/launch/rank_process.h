// The program of each rank of a job (RankProgram), and the processes that run
// it: started by this tool (RankProcessMain) or by another launcher
// (RunLaunchedRank).
//
//   int main(int argc, char** argv) {
//     if (IsRankProcess(argc, argv)) return RankProcessMain(argc, argv, make);
//     ...
//   }
//
// This header separates the start and supervision of ranks from their work:
// `make` opens the data once per process and returns a function that trains one
// rank.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/groups/host_hierarchy.h"
#include "tools/train/checkpoint/memory_copies.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/world.h"
#include "tools/train/loop/preemption.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/settings/settings.h"
#include "tools/train/watch/rank_watch.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::train {

struct RankContext {
  collectives::Communicator& world;
  // World::locations.
  std::span<const collectives::RankLocation> locations = {};
  // Logs all collectives of the world and of the groups made from it.
  std::shared_ptr<CollectiveLog> collectives = nullptr;
  // The rank calls it after each step. It is cheap.
  std::function<void()> on_step = [] {};
  // Ends the run after a step; null: never.
  Preemption* preemption = nullptr;
  // With --snapshot_every: the copies from which a run continues whose ranks
  // were replaced. They outlive `world`. Null: none.
  MemoryCopies* copies = nullptr;
  // Rank 0 writes its progress here; null: no output.
  std::ostream* progress = nullptr;
  bool is_terminal = false;  // `progress` is a terminal.
};

// Runs one rank to its end. The result of rank 0 reaches the process that the
// user started; results of other ranks are dropped. Ranks that are threads of
// one process call the same function concurrently. With --snapshot_every it is
// called again, with another world, when a rank was lost and replaced.
using RankProgram =
    std::function<absl::StatusOr<std::string>(const RankContext& rank)>;

// Called once in each process, before its ranks meet the others.
using MakeRankProgram =
    std::function<absl::StatusOr<RankProgram>(const Settings& settings)>;

// --hang_timeout; nullopt for HangDetector's default.
std::optional<absl::Duration> HangTimeoutOf(const Settings& settings);

// The maximum number of replacements of lost ranks; 0 without --snapshot_every.
int64_t ReplacementsOf(const Settings& settings);

// The last round of the rendezvous. With --snapshot_every it is one more than
// the replacements, for a run that cannot go on: new processes take the places
// of lost ranks while the others save their copies (AttemptFiles::Ending).
int64_t LastRoundOf(const Settings& settings);

// The command-line arguments that start this program as a rank of `files`.
// `is_terminal` says whether its standard error is a terminal. `places_fd` is
// the inherited descriptor of PlacePages; -1: the rank watches itself.
std::vector<std::string> RankArguments(const AttemptFiles& files,
                                       bool is_terminal, int places_fd = -1);
bool IsRankProcess(int argc, char** argv);

// The main function of a process with one rank, or with all ranks as threads.
// Reads the settings from the attempt's files and writes the result of rank 0,
// or the error of a rank, to them, and why the run stopped early. Prints
// nothing but progress. Returns the exit code: 0, or 1 if a rank failed.
int RankProcessMain(int argc, char** argv, const MakeRankProgram& make);

// Runs all ranks of the settings' mesh as threads of this process. Returns the
// result of rank 0, or the root cause of a failure with its rank in front.
absl::StatusOr<std::string> RunThreads(const Settings& settings,
                                       const RankProgram& program);

// Returns the environment of the launcher (mpirun, srun, torchrun,
// //tools/launch) that started this process as one rank, or nullopt without a
// launcher. InvalidArgument if its variables are inconsistent, the job's size
// differs from --mesh, or a setting requires that this process starts the ranks
// (--max_restarts, --engine=in_process).
absl::StatusOr<std::optional<topology::LauncherEnvironment>> FindLauncher(
    const Settings& settings);

struct LaunchedRun {
  bool is_first = false;  // This is rank 0.
  RunDirectory directory;
  Settings settings;        // --resume is replaced by the selected path.
  std::string result = "";  // On rank 0.
};

// Runs this process's rank of a launched job. A collective of the joined
// `world`. Rank 0 creates the run directory, which must be visible to all
// ranks, and writes to `progress`. `watch` has the rank of the calling thread.
// Returns errors of RunDirectory and of the program; a rank that fails aborts
// the others.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const LaunchedRun run,
//       RunLaunchedRank(settings, world, make, preemption, std::cerr,
//                       *watch));
//   if (run.is_first) Print(run.result);
absl::StatusOr<LaunchedRun> RunLaunchedRank(
    const Settings& settings, World& world, const MakeRankProgram& make,
    Preemption& preemption, std::ostream& progress, RankWatch& watch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_
