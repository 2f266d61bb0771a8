#include "tools/train/launch/launched_rank.h"

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/groups/agreement.h"
#include "tools/cli/cli.h"
#include "tools/train/launch/world.h"
#include "tools/train/settings/settings_json.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using topology::LauncherEnvironment;
using topology::Rank;

// Rank 0's run directory, where its config.json is, on every rank.
absl::StatusOr<RunDirectory> ShareRunDirectory(Communicator& world,
                                               const Settings& settings) {
  absl::StatusOr<RunDirectory> made = RunDirectory("");
  if (world.rank() == Rank(0)) {
    made = RunDirectory::Create(settings);
    if (made.ok()) {
      absl::Status written = WriteSettings(settings, made->config());
      if (!written.ok()) made = std::move(written);
    }
  }
  // "" where there is none: then rank 0 says why.
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> paths,
      collectives::ExchangeTexts(world, made.ok() ? made->path() : "",
                                 settings.parallel.timeout));
  const std::string& path = paths.front();
  if (!made.ok()) return made.status();
  if (path.empty()) return absl::AbortedError("rank 0 has no run directory");
  if (world.rank() == Rank(0)) return made;
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the run directory of rank 0, ", path,
        ", is not there or cannot be written here; give --run_dir=DIR of a "
        "file system that all hosts share"));
  }
  return RunDirectory(path);
}

Settings In(const RunDirectory& directory, Settings settings) {
  settings.run_dir = directory.path();
  if (settings.metrics.empty()) settings.metrics = directory.metrics();
  if (settings.resume == "latest") settings.resume = directory.LastCheckpoint();
  return settings;
}

absl::StatusOr<LaunchedRun> Run(const Settings& settings, World& world,
                                const MakeRankProgram& make,
                                std::ostream& progress) {
  Communicator& everyone = *world.communicator;
  TESSERA_ASSIGN_OR_RETURN(RunDirectory directory,
                           ShareRunDirectory(everyone, settings));
  Settings here = In(directory, settings);
  TESSERA_ASSIGN_OR_RETURN(const RankProgram program, make(here));
  TESSERA_ASSIGN_OR_RETURN(
      std::string result, program({.world = everyone,
                                   .collectives = world.collectives,
                                   .progress = &progress,
                                   .is_terminal = isatty(STDERR_FILENO) == 1}));
  // Nobody leaves while others still read what it holds.
  TESSERA_RETURN_IF_ERROR(everyone.Barrier());
  return LaunchedRun{everyone.rank() == Rank(0), std::move(directory),
                     std::move(here), std::move(result)};
}

}  // namespace

absl::StatusOr<std::optional<LauncherEnvironment>> FindLauncher(
    const Settings& settings) {
  const absl::StatusOr<LauncherEnvironment> found =
      topology::ReadLauncherEnvironment(
          RankVariables(settings, collectives::ProcessEnvironment()));
  if (absl::IsNotFound(found.status())) return std::nullopt;
  if (!found.ok()) return found.status();
  TESSERA_ASSIGN_OR_RETURN(const int64_t ranks, WorldSize(settings));
  const std::string_view name = topology::LauncherName(found->launcher);
  if (settings.engine == "in_process") {
    return tools::FlagError(
        "engine", settings.engine,
        absl::InvalidArgumentError(absl::StrCat(
            "its ranks are threads of one process, and ", name,
            " started this one as rank ", found->rank.value(), " of ",
            found->world_size.value(), "; run it without ", name)));
  }
  if (found->world_size.value() != ranks) {
    return tools::FlagError(
        "mesh", settings.parallel.mesh.ToFlag(),
        absl::InvalidArgumentError(
            absl::StrCat("it has ", ranks, ranks == 1 ? " rank" : " ranks",
                         ", and ", name, " started ", found->world_size.value(),
                         "; start as many as the mesh has")));
  }
  if (settings.max_restarts > 0) {
    return tools::FlagError(
        "max_restarts", absl::StrCat(settings.max_restarts),
        absl::InvalidArgumentError(absl::StrCat(
            name,
            " started this process as a rank, and only who starts ranks "
            "can start them again; have it do so, with --resume=latest")));
  }
  return *found;
}

absl::StatusOr<LaunchedRun> RunLaunchedRank(const Settings& settings,
                                            World& world,
                                            const MakeRankProgram& make,
                                            std::ostream& progress) {
  absl::StatusOr<LaunchedRun> run = Run(settings, world, make, progress);
  if (!run.ok()) {
    world.collectives->AbortAll(run.status());
    world.communicator->Abort(run.status().message());
  }
  return run;
}

}  // namespace tessera::train
