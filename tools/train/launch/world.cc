#include "tools/train/launch/world.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/bootstrap/network_options.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/groups/host_hierarchy.h"
#include "tools/cli/cli.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/watch/live_place.h"
#include "topology/config/strategies.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using collectives::Engine;
using collectives::Job;
using topology::CommunicationStrategy;
using topology::EnvironmentLookup;

// torchrun's variables. All readers prefer them to mpirun's.
constexpr std::array<std::string_view, 5> kTorchrunVariables = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"};

using EngineOptions = std::map<std::string, std::string>;

bool IsOverGloo(const Settings& settings) {
  return settings.engine == "gloo" || settings.engine == "auto";
}

absl::StatusOr<EngineOptions> OptionsFor(const Settings& settings,
                                         const EnvironmentLookup& lookup) {
  const absl::Duration timeout = settings.parallel.timeout;
  EngineOptions options;
  if (IsOverGloo(settings)) {
    TESSERA_ASSIGN_OR_RETURN(options,
                             collectives::NetworkOptions(lookup, timeout));
    if (settings.encrypt_data) options["encrypt"] = "true";
  }
  options["timeout"] = absl::FormatDuration(timeout);
  return options;
}

// The note of a world that sends data between hosts without encryption.
std::string NoteFor(const Settings& settings, const EngineOptions& options,
                    const World& world) {
  const bool spans_hosts = std::any_of(
      world.locations.begin(), world.locations.end(),
      [&](const auto& place) { return place.host != world.locations[0].host; });
  if (!spans_hosts || !IsOverGloo(settings) || settings.quiet) return "";
  return collectives::ClearDataNote(options, "--encrypt_data");
}

// Joins the ranks of a job: by MPI, or with all other engines through a store.
absl::StatusOr<Job> JoinRanks(const Settings& settings,
                              const EnvironmentLookup& lookup,
                              absl::Duration patience) {
  if (settings.engine != "mpi") {
    return collectives::JoinJob(lookup, {.timeout = patience});
  }
  Job job;
  TESSERA_ASSIGN_OR_RETURN(job.environment,
                           topology::ReadLauncherEnvironment(lookup));
  job.rank = job.environment.rank;
  job.world_size = job.environment.world_size;
  return job;
}

}  // namespace

absl::Status CheckEngine(const Settings& settings) {
  const std::string& engine = settings.engine;
  TESSERA_ASSIGN_OR_RETURN(
      const bool encrypts,
      collectives::EncryptsData(collectives::ProcessEnvironment()));
  if (encrypts && engine == "mpi") {
    return tools::FlagError(
        "engine", engine,
        absl::StrCat("does not encrypt, as ", collectives::kEncryptDataVariable,
                     "=1 demands; use --engine=auto"));
  }
  if (engine == "in_process") return absl::OkStatus();
  if (engine == "nccl") {
    return absl::UnimplementedError(
        "--engine=nccl: its buffers are device memory, and this trainer "
        "computes on the CPU; use shared_memory, or auto on several hosts");
  }
  const std::vector<std::string> names = collectives::RegisteredEngines();
  if (std::find(names.begin(), names.end(), engine) != names.end()) {
    return absl::OkStatus();
  }
  // The error says whether the engine is not built in or does not exist.
  const absl::Status status = collectives::CreateEngine(engine, {}).status();
  return absl::IsInvalidArgument(status)
             ? tools::FlagError(
                   "engine", engine,
                   absl::InvalidArgumentError(absl::StrCat(
                       "expected in_process, ", absl::StrJoin(names, ", "))))
             : Annotate(status, absl::StrCat("--engine=", engine));
}

EnvironmentLookup RankVariables(const Settings& settings,
                                const EnvironmentLookup& lookup) {
  if (settings.engine != "mpi") return lookup;
  return [lookup](std::string_view name) -> std::optional<std::string> {
    if (std::find(kTorchrunVariables.begin(), kTorchrunVariables.end(), name) !=
        kTorchrunVariables.end()) {
      return std::nullopt;
    }
    return lookup(name);
  };
}

absl::StatusOr<World> MakeWorld(
    const Settings& settings, std::unique_ptr<Engine> engine,
    std::shared_ptr<collectives::OperationObserver> observer) {
  collectives::CommunicatorOptions options;
  options.observer = std::move(observer);
  options.timeout = settings.parallel.timeout;
  // The same mesh gives the same bits with every algorithm.
  options.reproducible = true;
  const CommunicationStrategy strategy = settings.parallel.strategy;
  World world;
  world.collectives = std::make_shared<CollectiveLog>();
  if (settings.engine != "in_process") {
    TESSERA_ASSIGN_OR_RETURN(const collectives::RankLocation here,
                             collectives::RankLocation::Self());
    TESSERA_ASSIGN_OR_RETURN(
        world.locations,
        collectives::ExchangeLocations(*engine, here, options.timeout));
    options.hierarchy = collectives::HostHierarchy(world.locations);
  }
  engine = MeasureEngine(std::move(engine), world.collectives);
  if (strategy == CommunicationStrategy::kAdaptive) {
    TESSERA_ASSIGN_OR_RETURN(world.communicator,
                             collectives::CreateAdaptiveCommunicator(
                                 std::move(engine), std::move(options)));
    return world;
  }
  options.chooser = std::make_shared<collectives::StrategyChooser>(strategy);
  TESSERA_ASSIGN_OR_RETURN(
      world.communicator,
      Communicator::Create(std::move(engine), std::move(options)));
  return world;
}

absl::StatusOr<World> JoinWorld(
    const Settings& settings, const EnvironmentLookup& lookup,
    std::optional<absl::Duration> patience,
    std::shared_ptr<collectives::OperationObserver> observer) {
  const ActionScope place(RankAction::kJoin);
  TESSERA_ASSIGN_OR_RETURN(
      Job job, JoinRanks(settings, RankVariables(settings, lookup),
                         patience.value_or(settings.parallel.timeout)));
  TESSERA_RETURN_IF_ERROR(
      CheckParallel(settings.parallel, job.world_size.value()),
      Annotate(_, topology::LauncherName(job.environment.launcher)));
  TESSERA_ASSIGN_OR_RETURN(const EngineOptions options,
                           OptionsFor(settings, lookup));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           collectives::CreateEngine(
                               settings.engine, {.rank = job.rank,
                                                 .size = job.world_size.value(),
                                                 .store = job.store.get(),
                                                 .options = options}));
  TESSERA_ASSIGN_OR_RETURN(
      World world, MakeWorld(settings, std::move(engine), std::move(observer)));
  world.note = NoteFor(settings, options, world);
  world.store = std::move(job.store);
  return world;
}

}  // namespace tessera::train
