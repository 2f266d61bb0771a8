// RunLaunchedRank: this process is one rank of a job that mpirun, srun,
// torchrun or //tools/launch has started.
//
//   TESSERA_ASSIGN_OR_RETURN(const LaunchedRun run,
//                            RunLaunchedRank(settings, MakeTrainer, progress));
//   if (run.is_first) Print(run.result);
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_LAUNCHED_RANK_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_LAUNCHED_RANK_H_

#include <optional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "tools/train/launch/rank_program.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/world.h"
#include "tools/train/settings/settings.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::train {

// What the launcher says about this process; nothing where none started it.
// InvalidArgument where its variables make no sense, or the job's size is not
// that of --mesh, or the settings ask for what only the process that starts
// ranks can do (--max_restarts, threads for ranks).
absl::StatusOr<std::optional<topology::LauncherEnvironment>> FindLauncher(
    const Settings& settings);

struct LaunchedRun {
  bool is_first = false;  // Rank 0.
  RunDirectory directory;
  Settings settings;        // With the checkpoint that "latest" meant.
  std::string result = "";  // Of rank 0, there.
};

// A collective of the job, which has joined. Rank 0 makes the run directory,
// which all ranks see. `progress` is where rank 0 shows what it does. Its
// errors are RunDirectory's and the program's; a rank that fails ends the
// others.
absl::StatusOr<LaunchedRun> RunLaunchedRank(const Settings& settings,
                                            World& world,
                                            const MakeRankProgram& make,
                                            std::ostream& progress);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_LAUNCHED_RANK_H_
