#include "tools/train/launch/rank_process.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"
#include "collectives/in_process/in_process.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/train/launch/nodes.h"
#include "tools/train/launch/world.h"
#include "tools/train/settings/settings.h"
#include "tools/train/watch/live_place.h"
#include "tools/train/watch/rank_watch.h"

namespace tessera::train {

namespace {

using collectives::Engine;
using topology::Rank;

constexpr std::string_view kRankArgument = "--rank_of";
constexpr std::string_view kTerminal = "terminal";
constexpr std::string_view kNoTerminal = "no_terminal";

// Callbacks of this process's ranks. Thread-safe.
struct RankEvents {
  // Called before the other ranks are notified of the failure, so that their
  // reports are later.
  std::function<void(const RankReport&)> on_failure;
  // Set in a process with one rank.
  const AttemptFiles* files = nullptr;
  std::function<void()> on_step = [] {};
  Preemption* preemption = nullptr;
  RankWatch* watch = nullptr;  // Null: nobody asks where ranks are.
  std::ostream* progress = nullptr;
  bool is_terminal = false;
};

RankReport ReportOf(int64_t rank, absl::Status status) {
  return {rank, collectives::MonotonicNanos(), std::move(status)};
}

void PrintNote(const World& world, std::ostream& progress) {
  if (world.note.empty() || world.communicator->rank() != Rank(0)) return;
  progress << "train: " << world.note << std::endl;
}

// Runs the program. If it fails, aborts the collectives of the other ranks. If
// it `can_rejoin`, a failure that may come from another rank is not reported.
absl::StatusOr<std::string> RunRank(const World& world,
                                    const RankProgram& program,
                                    const RankEvents& events,
                                    MemoryCopies* copies = nullptr,
                                    bool can_rejoin = false) {
  if (events.progress != nullptr) PrintNote(world, *events.progress);
  absl::StatusOr<std::string> result =
      program({.world = *world.communicator,
               .locations = world.locations,
               .collectives = world.collectives,
               .on_step = events.on_step,
               .preemption = events.preemption,
               .copies = copies,
               .progress = events.progress,
               .is_terminal = events.is_terminal});
  const int64_t rank = world.communicator->rank().value();
  if (result.ok()) return rank == 0 ? std::move(result) : "";
  if (!can_rejoin || !MayBeConsequence(result.status())) {
    events.on_failure(ReportOf(rank, result.status()));
  }
  world.collectives->AbortAll(result.status());
  world.communicator->Abort(result.status().message());
  return result;
}

absl::StatusOr<std::string> RunThread(const Settings& settings,
                                      std::unique_ptr<Engine> engine,
                                      const RankProgram& program,
                                      const RankEvents& events) {
  const int64_t rank = engine->rank().value();
  const auto observer =
      events.watch == nullptr ? nullptr : events.watch->Attach(rank);
  const absl::Cleanup leave = [] { AttachPlace(nullptr); };
  const absl::StatusOr<World> world =
      MakeWorld(settings, std::move(engine), observer);
  if (world.ok()) return RunRank(*world, program, events);
  events.on_failure(ReportOf(rank, world.status()));
  return world.status();
}

absl::StatusOr<std::string> RunEveryThread(const Settings& settings,
                                           const RankProgram& program,
                                           const RankEvents& events) {
  TESSERA_ASSIGN_OR_RETURN(
      auto engines,
      collectives::CreateInProcessEngines(settings.parallel.mesh.world_size()));
  std::vector<absl::StatusOr<std::string>> results(engines.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] =
          RunThread(settings, std::move(engines[rank]), program, events);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result.ok()) return result.status();
  }
  return std::move(results[0]);
}

// The rank of this process according to its launcher's variables; 0 without
// these.
int64_t RankOfProcess(const Settings& settings) {
  const auto place = topology::ReadLauncherEnvironment(
      RankVariables(settings, collectives::ProcessEnvironment()));
  return place.ok() ? place->rank.value() : 0;
}

// True if the ranks of this run are on several nodes.
bool IsOneOfNodes(const Settings& settings) {
  const auto lookup = collectives::ProcessEnvironment();
  return settings.engine != "mpi" &&
         lookup("GROUP_WORLD_SIZE").value_or("1") != "1";
}

// The rounds of the rendezvous that this process can join.
class Rounds {
 public:
  Rounds(const Settings& settings, const AttemptFiles& files)
      : lookup_(RankVariables(settings, collectives::ProcessEnvironment())),
        files_(files),
        last_(LastRoundOf(settings)),
        rank_(RankOfProcess(settings)) {
    const std::string later =
        lookup_(collectives::kLaterSocketsVariable).value_or("");
    later_ = absl::StrSplit(later, ';', absl::SkipEmpty());
    are_nodes_ = IsOneOfNodes(settings);
    next_ = are_nodes_ ? files.ReadRound(rank_)
                       : last_ - static_cast<int64_t>(later_.size());
  }

  int64_t next() const { return next_; }
  bool HasNext() const { return next_ <= last_; }

  // The variables for the next round.
  absl::StatusOr<topology::EnvironmentLookup> Next(absl::Duration patience) {
    const ActionScope place(RankAction::kJoin);
    const int64_t round = next_++;
    // If it cannot be written, the rank cannot be replaced.
    if (last_ > 0) files_.WriteRound(rank_, round).IgnoreError();
    if (are_nodes_) {
      return VariablesOfRound(files_, round, lookup_, patience);
    }
    const auto later = static_cast<int64_t>(later_.size());
    const int64_t index = round - last_ + later - 1;
    if (index < 0) return lookup_;
    return [lookup = lookup_, sockets = later_[static_cast<size_t>(index)]](
               std::string_view name) -> std::optional<std::string> {
      return name == collectives::kInheritedSocketsVariable ? sockets
                                                            : lookup(name);
    };
  }

 private:
  const topology::EnvironmentLookup lookup_;
  const AttemptFiles& files_;
  const int64_t last_;
  const int64_t rank_;
  bool are_nodes_ = false;          // Ranks have no inherited sockets.
  std::vector<std::string> later_;  // Sockets of the last rounds.
  int64_t next_ = 0;
};

// The program of a round in which the run ends.
absl::StatusOr<std::string> SaveCopies(const Settings& settings,
                                       const RankContext& rank) {
  const ActionScope place(RankAction::kCheckpoint);
  MemoryCopies& copies = *rank.copies;
  const absl::Cleanup leave = [&] { copies.Leave(); };
  TESSERA_RETURN_IF_ERROR(copies.Join(rank.world, rank.locations).status());
  TESSERA_ASSIGN_OR_RETURN(
      const std::string path,
      copies.Save({.directory = settings.run_dir + "/checkpoints",
                   .keep = settings.keep_checkpoints,
                   .keep_best = settings.keep_best}));
  if (rank.world.rank() == Rank(0) && !path.empty() && !settings.quiet) {
    *rank.progress << "train: copies in memory are saved in " << path
                   << std::endl;
  }
  return "";
}

// True if the run ends in this round. All ranks return the same, even if some
// do not see the file yet.
absl::StatusOr<bool> EndsIn(int64_t round, const World& world,
                            const Settings& settings,
                            const AttemptFiles& files) {
  if (round == 0) return false;
  const auto ending = files.ReadEnding();
  const bool ends = ending.has_value() && round >= ending->round;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      collectives::ExchangeTexts(*world.communicator, ends ? "ends" : "",
                                 settings.parallel.timeout));
  return std::any_of(texts.begin(), texts.end(),
                     [](const std::string& text) { return !text.empty(); });
}

// When a rank is lost, the others join the next round, which the launcher lets
// a new process join in its place. Ranks notice the loss at different times, up
// to a timeout of a collective apart, and hung ranks are killed even later.
absl::StatusOr<std::string> RunOnlyRank(const Settings& settings,
                                        const RankProgram& program,
                                        const RankEvents& events) {
  const bool can_copy = settings.snapshot_every > 0;
  const absl::Duration patience =
      (can_copy ? 3 : 1) * settings.parallel.timeout;
  Rounds rounds(settings, *events.files);
  const auto observer = events.watch->Attach(RankOfProcess(settings));
  MemoryCopies copies;
  const RankProgram save = [&](const RankContext& rank) {
    return SaveCopies(settings, rank);
  };
  for (;;) {
    const int64_t round = rounds.next();
    copies.SetRound(round);
    const auto lookup = rounds.Next(patience);
    const bool can_rejoin = can_copy && rounds.HasNext();
    const absl::StatusOr<World> world =
        lookup.ok() ? JoinWorld(settings, *lookup, patience, observer)
                    : absl::StatusOr<World>(lookup.status());
    const absl::StatusOr<bool> ends =
        world.ok() ? EndsIn(round, *world, settings, *events.files)
                   : absl::StatusOr<bool>(world.status());
    absl::StatusOr<std::string> result =
        ends.ok() ? RunRank(*world, *ends ? save : program, events,
                            can_copy ? &copies : nullptr, can_rejoin)
                  : ends.status();
    if (result.ok() || !can_rejoin || !MayBeConsequence(result.status())) {
      return result;
    }
  }
}

absl::StatusOr<RankProgram> Load(const MakeRankProgram& make,
                                 const Settings& settings) {
  const ActionScope place(RankAction::kLoadData);
  return make(settings);
}

// Sets `exit_code` if the run stopped early, which a node without rank 0 does
// not know otherwise.
absl::Status RunProcess(const AttemptFiles& files, const MakeRankProgram& make,
                        const Settings& settings, RankEvents& events,
                        int& exit_code) {
  TESSERA_ASSIGN_OR_RETURN(const auto preemption, Preemption::Watch(settings));
  events.preemption = preemption.get();
  const bool is_only = settings.engine != "in_process";
  events.watch->Attach(is_only ? RankOfProcess(settings) : 0);
  TESSERA_ASSIGN_OR_RETURN(const RankProgram program, Load(make, settings));
  if (!is_only) AttachPlace(nullptr);
  const auto run = is_only ? RunOnlyRank : RunEveryThread;
  TESSERA_ASSIGN_OR_RETURN(const std::string result,
                           run(settings, program, events));
  const StopCause cause = preemption->stopped_by();
  if (!result.empty() || cause == StopCause::kNewHost) {
    TESSERA_RETURN_IF_ERROR(
        WriteFile(files.stopped_by(), StopCauseName(cause)));
  }
  if (result.empty()) {
    if (IsOneOfNodes(settings) && cause > StopCause::kNewHost) {
      exit_code = Preemption::kExitCode;
    }
    return absl::OkStatus();
  }
  return WriteFile(files.result(), result);
}

}  // namespace

int64_t ReplacementsOf(const Settings& settings) {
  // Each needs sockets in every process.
  constexpr int64_t kMost = 16;
  return settings.snapshot_every > 0 ? std::min(settings.max_restarts, kMost)
                                     : 0;
}

int64_t LastRoundOf(const Settings& settings) {
  return settings.snapshot_every > 0 ? ReplacementsOf(settings) + 1 : 0;
}

std::vector<std::string> RankArguments(const AttemptFiles& files,
                                       bool is_terminal, int places_fd) {
  return tools::OwnArguments(
      {std::string(kRankArgument), files.directory, files.flight,
       std::string(is_terminal ? kTerminal : kNoTerminal),
       absl::StrCat(places_fd)});
}

bool IsRankProcess(int argc, char** argv) {
  return argc == 6 && argv[1] == kRankArgument;
}

namespace {

// The pages of all ranks, or one for the rank of this process if it shares none
// with the process that started it.
absl::StatusOr<std::unique_ptr<PlacePages>> PagesOf(std::string_view fd_text,
                                                    const Settings& settings) {
  int fd = -1;
  if (!absl::SimpleAtoi(fd_text, &fd) || fd < 0) return PlacePages::Create(1);
  return PlacePages::Open(fd, settings.parallel.mesh.world_size());
}

absl::Status WatchAndRun(char** argv, const MakeRankProgram& make,
                         const Settings& settings, RankEvents& events,
                         int& exit_code) {
  const AttemptFiles files = {argv[2], argv[3]};
  TESSERA_ASSIGN_OR_RETURN(const auto pages, PagesOf(argv[5], settings));
  const auto watch =
      RankWatch::Start(*pages, {.directory = files.flight,
                                .judges = std::string_view(argv[5]) == "-1",
                                .timeout = HangTimeoutOf(settings),
                                .err = &std::cerr});
  events.watch = watch.get();
  const absl::Status status =
      RunProcess(files, make, settings, events, exit_code);
  events.watch = nullptr;
  return status;
}

}  // namespace

std::optional<absl::Duration> HangTimeoutOf(const Settings& settings) {
  const auto timeout = ParseTimeSpan(settings.hang_timeout);
  if (!timeout.ok()) return std::nullopt;
  return *timeout;
}

int RankProcessMain(int argc, char** argv, const MakeRankProgram& make) {
  if (!IsRankProcess(argc, argv)) return 2;
  tools::PrepareProcess()
      .IgnoreError();  // The parent has entered the directory.
  const AttemptFiles files = {argv[2], argv[3]};
  std::atomic<bool> has_reported = false;
  std::once_flag stepped;
  RankEvents events;
  events.on_failure = [&](const RankReport& failure) {
    has_reported = true;
    if (events.watch != nullptr) events.watch->WriteFiles();
    // If writing fails too, the exit code still reports the failure.
    files.WriteReport(failure).IgnoreError();
  };
  events.on_step = [&] { std::call_once(stepped, [&] { files.MarkStep(); }); };
  events.files = &files;
  events.progress = &std::cerr;
  events.is_terminal = argv[4] == kTerminal;
  const absl::StatusOr<Settings> settings = ReadSettings(files.settings());
  int exit_code = 0;
  const absl::Status status =
      settings.ok() ? WatchAndRun(argv, make, *settings, events, exit_code)
                    : settings.status();
  if (status.ok()) return exit_code;
  if (!has_reported) {
    events.on_failure(
        ReportOf(RankOfProcess(settings.value_or(Settings())), status));
  }
  return 1;
}

absl::StatusOr<std::string> RunThreads(const Settings& settings,
                                       const RankProgram& program) {
  std::mutex mutex;
  std::vector<RankReport> reports;
  RankEvents events;
  events.on_failure = [&](const RankReport& report) {
    const std::lock_guard lock(mutex);
    reports.push_back(report);
  };
  absl::StatusOr<std::string> result =
      RunEveryThread(settings, program, events);
  const RankReport* const cause = FindCause(reports);
  if (cause == nullptr) return result;
  return NameRank(*cause);
}

namespace {

using collectives::Communicator;
using topology::LauncherEnvironment;

// Rank 0 creates the run directory and writes config.json; returns the
// directory on every rank.
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
  // "" if rank 0 failed, which reports the reason.
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

absl::StatusOr<Settings> In(const RunDirectory& directory, Settings settings) {
  settings.run_dir = directory.path();
  if (settings.metrics.empty()) settings.metrics = directory.metrics();
  if (settings.resume == "latest") settings.resume = directory.LastCheckpoint();
  if (settings.resume == "best") {
    TESSERA_ASSIGN_OR_RETURN(settings.resume, directory.BestCheckpoint());
  }
  return settings;
}

absl::StatusOr<LaunchedRun> Run(const Settings& settings, World& world,
                                const MakeRankProgram& make,
                                Preemption& preemption, std::ostream& progress,
                                RankWatch& watch) {
  Communicator& everyone = *world.communicator;
  TESSERA_ASSIGN_OR_RETURN(RunDirectory directory,
                           ShareRunDirectory(everyone, settings));
  TESSERA_ASSIGN_OR_RETURN(Settings here, In(directory, settings));
  // The launcher may start the ranks again, and does not say how often.
  if (!settings.run_dir.empty()) {
    watch.SetDirectory(directory.path() + "/flight/last");
  }
  TESSERA_ASSIGN_OR_RETURN(const RankProgram program, Load(make, here));
  PrintNote(world, progress);
  TESSERA_ASSIGN_OR_RETURN(
      std::string result, program({.world = everyone,
                                   .locations = world.locations,
                                   .collectives = world.collectives,
                                   .preemption = &preemption,
                                   .progress = &progress,
                                   .is_terminal = isatty(STDERR_FILENO) == 1}));
  // No rank may end while others still read its memory.
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
  const int64_t ranks = settings.parallel.mesh.world_size();
  const std::string_view name = topology::LauncherName(found->launcher);
  // A shell in a job, such as that of srun --pty, is not a rank of this one.
  const bool is_alone = found->world_size.value() == 1;
  if (is_alone && (ranks > 1 || settings.engine == "in_process" ||
                   settings.max_restarts > 0)) {
    return std::nullopt;
  }
  if (settings.engine == "in_process") {
    return tools::FlagError(
        "engine", settings.engine,
        absl::InvalidArgumentError(
            absl::StrCat("its ranks are threads of one process, and ", name,
                         " started this one as rank ", found->rank.value(),
                         " of ", found->world_size.value(), "; run it without ",
                         name, ", or with --launcher=none")));
  }
  if (found->world_size.value() != ranks) {
    return tools::FlagError(
        "mesh", settings.parallel.mesh.ToFlag(),
        absl::InvalidArgumentError(
            absl::StrCat("it has ", ranks, ranks == 1 ? " rank" : " ranks",
                         ", and ", name, " started ", found->world_size.value(),
                         "; start as many as the mesh has, or give "
                         "--launcher=none to start them here")));
  }
  if (settings.max_restarts > 0) {
    return tools::FlagError(
        "max_restarts", absl::StrCat(settings.max_restarts),
        absl::InvalidArgumentError(absl::StrCat(
            name,
            " started this process as a rank, and only the launcher can "
            "restart ranks; let it restart them with --resume=latest, or "
            "give --launcher=none to start the ranks here")));
  }
  return *found;
}

absl::StatusOr<LaunchedRun> RunLaunchedRank(
    const Settings& settings, World& world, const MakeRankProgram& make,
    Preemption& preemption, std::ostream& progress, RankWatch& watch) {
  absl::StatusOr<LaunchedRun> run =
      Run(settings, world, make, preemption, progress, watch);
  if (!run.ok()) {
    watch.WriteFiles();
    world.collectives->AbortAll(run.status());
    world.communicator->Abort(run.status().message());
  }
  return run;
}

}  // namespace tessera::train
