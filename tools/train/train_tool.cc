#include "tools/train/train_tool.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/device/cuda_device.h"
#include "base/file.h"
#include "base/os/atomic_file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/steady_now.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/bootstrap/store.h"
#include "collectives/groups/agreement.h"
#include "collectives/groups/host_hierarchy.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tools/cli/tool_registry.h"
#include "tools/launch/launch_command.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/launch/finish.h"
#include "tools/train/launch/hugging_face_run.h"
#include "tools/train/launch/memory_check.h"
#include "tools/train/launch/nodes.h"
#include "tools/train/launch/rank_process.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/supervise.h"
#include "tools/train/launch/world.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/preemption.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/loop/worker.h"
#include "tools/train/predict/choose_device.h"
#include "tools/train/predict/choose_order.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_flags.h"
#include "tools/train/watch/live_place.h"
#include "tools/train/watch/rank_watch.h"
#include "topology/discovery/launcher_environment.h"
#include "topology/discovery/nvml.h"
#include "topology/rank.h"
#include "zero3/parameters/parameter_groups.h"

// This file follows the order of a run: flags, checks, the processes of the
// ranks, each rank's work, the end of the run. After these come ranks that
// another launcher started, and the details of the checks.

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Settings that have passed all checks that need the data and the model.
struct CheckedRun {
  Settings settings = {};
  std::shared_ptr<const text::Tokenizer> tokenizer = nullptr;
  RunIdentity identity = {};
  absl::Duration begin = SteadyNow();
  // Only with --report, --dry_run and --memory_limit.
  std::optional<RunPrediction> prediction = std::nullopt;
};

absl::StatusOr<CheckedRun> CheckRun(const Settings& settings,
                                    std::ostream& err);
absl::Status CheckMemory(const Settings& settings,
                         const model_files::ModelConfig& model,
                         int64_t ranks_here, std::ostream& err);
// Before ranks start, so that an invalid path is bad usage.
absl::Status CheckOutputs(const Settings& settings);
void PrintPrediction(const CheckedRun& run, std::ostream& out);
void Announce(const CheckedRun& run, const RunDirectory& directory,
              std::ostream& err);
absl::Status RunHere(const Settings& settings, const NodePlace& place,
                     int64_t ranks_here, std::ostream& out, std::ostream& err,
                     int& exit_code);
absl::Status RunNode(Settings settings, const NodePlace& place,
                     std::ostream& out, std::ostream& err, int& exit_code);
absl::Status RunJob(const CheckedRun& run, const RunDirectory& directory,
                    const NodePlace& place, std::ostream& out,
                    std::ostream& err, int& exit_code);
absl::Status RunOneRank(const Settings& settings,
                        const topology::LauncherEnvironment& place,
                        std::ostream& out, std::ostream& err, int& exit_code);
absl::StatusOr<RankProgram> MakeTrainer(const Settings& settings);
absl::Status SetDevice(
    const std::optional<topology::LauncherEnvironment>& launcher,
    std::ostream& err, Settings& settings);

}  // namespace

namespace {

// Not a setting: it is about this process, and not stored with the run.
tools::Flag LauncherFlag() {
  tools::Flag flag = {.name = "launcher"};
  flag.help =
      "the launcher that started this process as a rank: auto (from the "
      "environment), none (this process starts the ranks), torchrun, openmpi, "
      "mpich or slurm; sets TESSERA_LAUNCHER";
  flag.default_value = "auto";
  flag.section = "Launcher";
  flag.set = [](std::string_view value) {
    const auto& choices = topology::kLauncherChoices;
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
      return tools::FlagError(
          "launcher", value,
          absl::StrCat("expected ", absl::StrJoin(choices, ", ")));
    }
    setenv(std::string(topology::kLauncherVariable).c_str(),
           std::string(value).c_str(), 1);
    return absl::OkStatus();
  };
  return flag;
}

// A flag of earlier versions.
tools::Flag ElasticFlag() {
  tools::Flag flag = {.name = "elastic"};
  flag.is_boolean = true;
  flag.set = [](std::string_view value) {
    return tools::FlagError("elastic", value,
                            "has another name; --min_dp=1 allows restarts with "
                            "fewer data-parallel ranks, down to 1");
  };
  return flag;
}

}  // namespace

tools::Tool TrainTool(TrainFlags& flags) {
  std::vector<tools::Flag> all = flags.settings.Flags();
  all.push_back(LauncherFlag());
  all.push_back(ElasticFlag());
  absl::c_move(NodeFlags(flags.place), std::back_inserter(all));
  return {.name = "train",
          .summary = "Trains a Llama-architecture model over a mesh of ranks.",
          .example = "--mesh=dp2,pp2,tp2 --steps=60",
          .flags = std::move(all)};
}

int TrainMain(int argc, char** argv) {
  ReturnFreedBlocks();  // Also in rank processes.
  if (IsRankProcess(argc, argv)) {
    return RankProcessMain(argc, argv, MakeTrainer);
  }
  int outcome = 0;
  TrainFlags flags;
  const int code = tools::RunTool(TrainTool(flags), argc, argv, [&] {
    return RunTrainTool(flags, std::cout, std::cerr, outcome);
  });
  // RunTool does not handle signals and failures that another rank reports.
  return outcome != 0 && code != 2 ? outcome : code;
}

absl::Status RunTrainTool(const TrainFlags& flags, std::ostream& out,
                          std::ostream& err, int& exit_code) {
  const NodePlace& place = flags.place;
  TESSERA_ASSIGN_OR_RETURN(Settings settings, flags.settings.Read());
  TESSERA_RETURN_IF_ERROR(FollowInitialModel(flags.settings, settings));
  if (!flags.settings.IsChosen("dtype")) FollowCheckpoint(settings);
  TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
  TESSERA_RETURN_IF_ERROR(CheckPlace(place, settings));
  settings = AtLowestRung(settings, ScratchOf(settings));
  if (settings.dry_run) {
    TESSERA_RETURN_IF_ERROR(SetDevice(std::nullopt, err, settings));
    TESSERA_ASSIGN_OR_RETURN(const CheckedRun run, CheckRun(settings, err));
    PrintPrediction(run, out);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(CheckEngine(settings));
  if (!place.is_alone()) return RunNode(settings, place, out, err, exit_code);
  TESSERA_ASSIGN_OR_RETURN(const auto launcher, FindLauncher(settings));
  TESSERA_RETURN_IF_ERROR(SetDevice(launcher, err, settings));
  if (launcher.has_value()) {
    return RunOneRank(settings, *launcher, out, err, exit_code);
  }
  return RunHere(settings, place, /*ranks_here=*/0, out, err, exit_code);
}

namespace {

// A job whose ranks this process starts, or those of one node.

absl::Status RunHere(const Settings& settings, const NodePlace& place,
                     int64_t ranks_here, std::ostream& out, std::ostream& err,
                     int& exit_code) {
  const std::string path = RunDirectory::PathOf(settings);
  // A lost first node that is started again finds a run that goes on.
  const bool begins =
      place.node == 0 &&
      (place.is_alone() || !Nodes::IsRunning(RunDirectory(path).exchange()));
  if (begins) TESSERA_RETURN_IF_ERROR(CheckOutputs(settings));
  TESSERA_ASSIGN_OR_RETURN(CheckedRun run, CheckRun(settings, err));
  TESSERA_RETURN_IF_ERROR(
      CheckMemory(run.settings, run.identity.model, ranks_here, err));
  if (!begins) {
    // The node that begins selects it.
    run.settings.resume = RunDirectory(path).LastCheckpoint();
    return RunJob(run, RunDirectory(path), place, out, err, exit_code);
  }
  TESSERA_ASSIGN_OR_RETURN(run.settings.resume,
                           FindResumePoint(settings, run.identity));
  TESSERA_ASSIGN_OR_RETURN(const std::string notice,
                           ConversionNotice(settings, run.settings.resume));
  if (!notice.empty()) err << "train: " << notice << std::endl;
  TESSERA_ASSIGN_OR_RETURN(const RunDirectory directory,
                           RunDirectory::Create(settings));
  TESSERA_RETURN_IF_ERROR(WriteSettings(run.settings, directory.config()));
  Announce(run, directory, err);
  return RunJob(run, directory, place, out, err, exit_code);
}

// The devices and the memory are those of the ranks of this node.
absl::Status RunNode(Settings settings, const NodePlace& place,
                     std::ostream& out, std::ostream& err, int& exit_code) {
  const int64_t ranks = settings.parallel.mesh.world_size();
  topology::LauncherEnvironment here;
  here.world_size = topology::AxisSize(ranks);
  here.local_world_size = ranks / place.nodes;
  TESSERA_RETURN_IF_ERROR(SetDevice(here, err, settings));
  return RunHere(settings, place, ranks / place.nodes, out, err, exit_code);
}

// The ranks' settings.
Settings In(const RunDirectory& directory, Settings settings) {
  settings.run_dir = directory.path();
  if (settings.metrics.empty()) settings.metrics = directory.metrics();
  return settings;
}

// Converts errors that occur while ranks run, so that they are not reported as
// errors of the command line.
absl::Status AsFailedRun(const absl::Status& status) {
  return absl::IsInvalidArgument(status)
             ? absl::FailedPreconditionError(status.message())
             : status;
}

// "; continue with: COMMAND", "" if there is no checkpoint.
std::string HowToContinue(const RunDirectory& directory) {
  if (directory.LastCheckpoint().empty()) return "";
  const std::vector<std::string> command =
      tools::OwnArguments({absl::StrCat("--config=", directory.config())});
  return absl::StrCat("; continue with: ", tools::OwnPath().value_or("train"),
                      " ", absl::StrJoin(command, " "),
                      " --run_dir=", directory.path(), " --resume=latest");
}

// Adds the command that continues the job to the error of a failed job.
absl::Status ExplainFailure(const absl::Status& status,
                            const RunDirectory& directory) {
  return AsFailedRun(absl::Status(
      status.code(), absl::StrCat(status.message(), HowToContinue(directory))));
}

// How a run ended that was asked to end: `why` and, unless it wrote its last
// checkpoint, what is lost.
std::string ExplainPreemption(std::string_view why, bool is_saved,
                              const Settings& settings,
                              const RunDirectory& directory) {
  const std::string last = directory.LastCheckpoint();
  const std::string lost =
      last.empty() ? "all steps" : absl::StrCat("the steps after ", last);
  return absl::StrCat(
      why,
      is_saved ? absl::StrCat(" after the checkpoint ", last)
               : absl::StrCat(" before a checkpoint was complete (--grace_"
                              "period=",
                              settings.grace_period, "), ", lost, " are lost"),
      HowToContinue(directory));
}

// The error of a job that failed or was asked to end.
absl::Status ExplainEnd(const AttemptOutcome& trained, const Settings& settings,
                        const NodePlace& place, const RunDirectory& directory) {
  if (trained.leaves) return AsFailedRun(trained.status);
  if (trained.signal != SIGTERM || !trained.took_a_step) {
    return ExplainFailure(trained.status, directory);
  }
  // The node of rank 0 says whether there is a checkpoint.
  if (!place.is_alone() && trained.result.empty()) return trained.status;
  return absl::AbortedError(ExplainPreemption(
      trained.status.message(), !trained.result.empty(), settings, directory));
}

// The settings for the ranks of an attempt, which start later than the command.
Settings WithTimeLeft(Settings settings, absl::Duration passed) {
  const auto limit = ParseTimeSpan(settings.time_limit);
  const auto grace = ParseTimeSpan(settings.grace_period);
  if (!limit.ok() || !grace.ok()) return settings;
  settings.time_limit = absl::FormatDuration(
      absl::Ceil(std::max(*limit - passed, *grace), absl::Milliseconds(1)));
  return settings;
}

void Announce(const CheckedRun& run, const RunDirectory& directory,
              std::ostream& err) {
  if (run.settings.quiet) return;
  const auto parameters =
      static_cast<double>(run.identity.model.ParameterCount());
  err << absl::StrFormat(
             "train: %s, %.2f million parameters, on %s over %s; output in %s",
             run.settings.model, parameters / 1e6,
             run.settings.parallel.mesh.ToFlag(), run.settings.engine,
             directory.path())
      << std::endl;
}

// Meets the other nodes; null on one node.
absl::StatusOr<std::unique_ptr<Nodes>> JoinNodes(
    const Settings& settings, const NodePlace& place,
    const RunDirectory& directory,
    std::function<void(const std::string&)> notice) {
  constexpr absl::Duration kLeastSilence = absl::Seconds(3);
  constexpr absl::Duration kLeastPatience = absl::Minutes(2);
  if (place.is_alone()) return nullptr;
  const absl::Duration silence =
      HangTimeoutOf(settings).value_or(absl::Seconds(10));
  return Nodes::Join(
      {.place = place,
       .directory = directory.exchange(),
       .patience = std::max(kLeastPatience, 3 * settings.parallel.timeout),
       .silence = std::max(kLeastSilence, silence),
       .notice = std::move(notice)});
}

absl::Status RunJob(const CheckedRun& run, const RunDirectory& directory,
                    const NodePlace& place, std::ostream& out,
                    std::ostream& err, int& exit_code) {
  TESSERA_ASSIGN_OR_RETURN(const std::string program, tools::OwnPath());
  const auto notice = [&](const std::string& line) {
    err << "train: " << line << std::endl;
  };
  absl::StatusOr<std::unique_ptr<Nodes>> nodes =
      JoinNodes(run.settings, place, directory, notice);
  if (!nodes.ok()) return AsFailedRun(nodes.status());
  const auto attempt = [&](const Settings& settings) {
    out.flush();
    return RunAttempt(WithTimeLeft(settings, SteadyNow() - run.begin),
                      {.files = {directory.exchange(), directory.NextFlight()},
                       .program = program,
                       .notice = notice,
                       .sinks = {},
                       .is_terminal = isatty(STDERR_FILENO) == 1,
                       .nodes = nodes->get()});
  };
  const AttemptOutcome trained = Supervise(
      In(directory, run.settings),
      {.attempt = attempt,
       .last_checkpoint = [&] { return directory.LastCheckpoint(); },
       .is_valid = [](const Settings& s) { return CheckSettings(s).ok(); },
       .notice = notice,
       .are_nodes = !place.is_alone()});
  nodes->reset();
  // Other nodes may still use the directory; the last one removes their files.
  if (place.is_alone() || !PathExists(directory.exchange())) {
    directory.CleanUp();
  }
  if (trained.signal.has_value()) exit_code = 128 + *trained.signal;
  const bool is_done = trained.status.ok() && trained.signal != SIGTERM;
  if (!is_done) return ExplainEnd(trained, run.settings, place, directory);
  if (trained.result.empty()) return absl::OkStatus();  // Another node has it.
  const auto train_again =
      [&](const Settings& settings) -> absl::StatusOr<std::string> {
    AttemptOutcome outcome = attempt(settings);
    if (outcome.signal.has_value()) exit_code = 128 + *outcome.signal;
    if (!outcome.status.ok()) return outcome.status;
    return std::move(outcome.result);
  };
  return AsFailedRun(FinishRun(
      {run.settings, run.tokenizer, run.prediction, directory, train_again},
      trained.result, out, err));
}

// The work of each rank.

// Shared by the ranks of a process.
struct RankInputs {
  Settings settings;
  TrainingData data;
  model_files::ModelConfig model;
};

// Returns --order, which rank 0 selects for all ranks if it is "auto".
absl::StatusOr<std::string> AgreeOnOrder(const RankInputs& inputs,
                                         const RankContext& rank) {
  const Settings& settings = inputs.settings;
  if (settings.order != kAutoOrder) return settings.order;
  absl::StatusOr<std::string> chosen = std::string();
  if (rank.world.rank().value() == 0) {
    chosen = ChooseOrder(settings, inputs.model, rank.locations);
  }
  const absl::Duration timeout = settings.parallel.timeout;
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(rank.world, chosen.status(), timeout));
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> orders,
      collectives::ExchangeTexts(rank.world, *chosen, timeout));
  return std::move(orders.front());
}

// The number of ranks below `end` on the rank's host.
std::optional<int64_t> RanksOnHost(const RankContext& rank, int64_t end) {
  const auto own = static_cast<size_t>(rank.world.rank().value());
  if (own >= rank.locations.size()) return std::nullopt;
  const auto some = rank.locations.first(static_cast<size_t>(end));
  return std::count_if(some.begin(), some.end(), [&](const auto& other) {
    return other.host == rank.locations[own].host;
  });
}

absl::StatusOr<std::string> TrainOneRank(const RankInputs& inputs,
                                         const RankContext& rank) {
  Settings settings = inputs.settings;
  TESSERA_ASSIGN_OR_RETURN(settings.order, AgreeOnOrder(inputs, rank));
  WorkerSinks sinks;
  if (!settings.quiet) sinks.table = rank.progress;
  sinks.is_terminal = rank.is_terminal;
  sinks.collectives = rank.collectives;
  sinks.on_step = rank.on_step;
  sinks.preemption = rank.preemption;
  sinks.copies = rank.copies;
  sinks.locations = rank.locations;
  sinks.local_rank = RanksOnHost(rank, rank.world.rank().value());
  sinks.local_ranks = RanksOnHost(rank, rank.world.size());
  TESSERA_ASSIGN_OR_RETURN(
      RunResult result,
      RunWorker(rank.world, settings, inputs.model, inputs.data, sinks));
  result.order = settings.order;
  return FormatRunResult(result);
}

// Opens the data and the model for all ranks of this process.
absl::StatusOr<RankProgram> MakeTrainer(const Settings& settings) {
  auto inputs = std::make_shared<RankInputs>();
  inputs->settings = settings;
  TESSERA_ASSIGN_OR_RETURN(inputs->data, OpenTrainingData(settings));
  TESSERA_ASSIGN_OR_RETURN(
      inputs->model,
      ModelOf(settings, inputs->data.tokenizer->vocabulary_size()));
  return [inputs = std::shared_ptr<const RankInputs>(std::move(inputs))](
             const RankContext& rank) { return TrainOneRank(*inputs, rank); };
}

// Ranks that another launcher started.

// The time that rank 0 waits for the other ranks to notice a failure.
constexpr absl::Duration kNoticeTime = absl::Seconds(3);

// Notifies rank 0 that this rank has failed. On rank 0, adds to `status` the
// ranks that do not report a failure within kNoticeTime: they or their hosts
// are gone or blocked. This matters after a network failure, when rank 0 may
// wait for a rank that itself waits for a lost one.
absl::Status NameSilentRanks(collectives::Store& store,
                             const absl::Status& status) {
  constexpr std::string_view kFailed = "train/failed/";
  const absl::Time deadline = absl::Now() + kNoticeTime;
  // If rank 0 does not answer, no rank can be notified.
  store
      .SetFor(/*reads=*/0, absl::StrCat(kFailed, store.rank().value()), "",
              deadline)
      .IgnoreError();
  if (store.rank() != topology::Rank(0)) return status;
  std::vector<topology::Rank> everyone;
  for (int64_t r = 0; r < store.size(); ++r) everyone.emplace_back(r);
  const absl::StatusOr<collectives::MissingMembers> missing =
      store.AwaitAll(kFailed, everyone, deadline);
  if (!missing.ok() || missing->count == 0) return status;
  std::vector<std::string> silent;
  for (const collectives::JobMember& member : missing->named) {
    if (missing->AnyGone() && !member.IsGone()) continue;
    silent.push_back(
        absl::StrCat("rank ", member.rank.value(), " (", member.where, ")"));
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; no sign of life from ",
                                   absl::StrJoin(silent, ", ")));
}

// Returns when rank 0's process has ended, or after a timeout. A launcher ends
// all ranks when one exits with an error, and rank 0 needs time for its report.
void AwaitEndOfRank0(collectives::Store& store) {
  if (store.rank() == topology::Rank(0)) return;
  // No rank sets this key.
  store
      .GetFrom(topology::Rank(0), "train/never",
               absl::Now() + kNoticeTime + absl::Seconds(2))
      .IgnoreError();
}

// Reports the failure of this rank. Launchers name a rank that died, so a rank
// whose error may follow from another rank's failure prints nothing, unless it
// is rank 0 or timed out: after a network failure only the waiting rank knows
// the peer for which it waited. `store` is null for MPI.
absl::Status ReportOnce(const topology::LauncherEnvironment& place,
                        absl::Status status, collectives::Store* store,
                        std::ostream& err, int& exit_code) {
  exit_code = 1;
  const bool is_first = place.rank.value() == 0;
  const bool timed_out = absl::IsDeadlineExceeded(status);
  const bool follows = timed_out || MayBeConsequence(status);
  if (!follows || store == nullptr) {
    if (follows && !is_first && !timed_out) return absl::OkStatus();
    return AsFailedRun(NameRank({place.rank.value(), 0, status}));
  }
  if (!is_first && timed_out) {
    err << "train: " << NameRank({place.rank.value(), 0, status}).message()
        << std::endl;
  }
  status = NameSilentRanks(*store, status);
  AwaitEndOfRank0(*store);
  if (!is_first) return absl::OkStatus();
  return AsFailedRun(NameRank({place.rank.value(), 0, status}));
}

// Checks memory before the ranks meet. Only the first rank of each host prints
// the error.
absl::Status CheckMemoryOfHost(const Settings& settings,
                               const topology::LauncherEnvironment& place,
                               std::ostream& err, int& exit_code) {
  const absl::StatusOr<CheckedRun> run = CheckRun(settings, err);
  // Ranks report such errors after they have met.
  if (!run.ok()) return absl::OkStatus();
  std::ostringstream warning;
  const absl::Status status =
      CheckMemory(settings, run->identity.model,
                  place.local_world_size.value_or(1), warning);
  if (place.local_rank != 0) {
    if (!status.ok()) exit_code = 2;
    return absl::OkStatus();
  }
  err << warning.str() << std::flush;
  return status;
}

// The end of a run on rank 0, which a launcher started.
absl::Status FinishLaunched(const LaunchedRun& launched, StopCause cause,
                            std::ostream& out, std::ostream& err) {
  launched.directory.CleanUp();
  if (cause != StopCause::kNone) {
    return absl::AbortedError(ExplainPreemption(
        absl::StrCat("ended by ", StopCauseName(cause)),
        /*is_saved=*/true, launched.settings, launched.directory));
  }
  TESSERA_ASSIGN_OR_RETURN(const CheckedRun run,
                           CheckRun(launched.settings, err));
  const auto train_alone =
      [](const Settings& alone) -> absl::StatusOr<std::string> {
    TESSERA_ASSIGN_OR_RETURN(const RankProgram program, MakeTrainer(alone));
    return RunThreads(alone, program);
  };
  return AsFailedRun(
      FinishRun({launched.settings, run.tokenizer, run.prediction,
                 launched.directory, train_alone},
                launched.result, out, err));
}

absl::Status RunOneRank(const Settings& settings,
                        const topology::LauncherEnvironment& place,
                        std::ostream& out, std::ostream& err, int& exit_code) {
  // Each rank would select its own rung.
  if (settings.parallel.memory_limit != ByteSize()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--memory_limit=", settings.parallel.memory_limit.ToString(),
        ": is for runs that start their ranks themselves; under a launcher "
        "give the flags that --dry_run --memory_limit=",
        settings.parallel.memory_limit.ToString(), " chooses"));
  }
  const bool is_first = place.rank.value() == 0;
  if (is_first) TESSERA_RETURN_IF_ERROR(CheckOutputs(settings));
  TESSERA_ASSIGN_OR_RETURN(
      const auto preemption, Preemption::Watch(settings, [&](StopCause cause) {
        if (!is_first) return;
        err << "train: "
            << ExplainPreemption(
                   absl::StrCat("ended by ", StopCauseName(cause)),
                   /*is_saved=*/false, settings,
                   RunDirectory(RunDirectory::PathOf(settings)))
            << std::endl;
      }));
  Settings quick = settings;
  quick.report = false;  // Skips the measurements that --report needs.
  TESSERA_RETURN_IF_ERROR(CheckMemoryOfHost(quick, place, err, exit_code));
  if (exit_code != 0) return absl::OkStatus();
  // Until the ranks have met, no error follows from another rank's failure, so
  // each rank reports its own.
  TESSERA_ASSIGN_OR_RETURN(const auto pages, PlacePages::Create(1));
  const auto watch = RankWatch::Start(
      *pages,
      {.judges = true, .timeout = HangTimeoutOf(settings), .err = &err});
  const auto observer = watch->Attach(place.rank.value());
  absl::StatusOr<World> world =
      JoinWorld(settings, collectives::ProcessEnvironment(),
                /*patience=*/std::nullopt, observer);
  if (!world.ok()) {
    return AsFailedRun(NameRank({place.rank.value(), 0, world.status()}));
  }
  const absl::StatusOr<LaunchedRun> launched =
      RunLaunchedRank(settings, *world, MakeTrainer, *preemption, err, *watch);
  if (!launched.ok()) {
    return ReportOnce(place, launched.status(), world->store.get(), err,
                      exit_code);
  }
  const StopCause cause = preemption->stopped_by();
  if (cause != StopCause::kNone) exit_code = Preemption::kExitCode;
  return launched->is_first ? FinishLaunched(*launched, cause, out, err)
                            : absl::OkStatus();
}

// The details of the checks.

// The free memory of GPUs by PCI bus id, in lower case; empty without NVML.
std::map<std::string, int64_t> FreeGpuMemory() {
  std::map<std::string, int64_t> free;
  const auto gpus = topology::ReadNvml();
  if (!gpus.ok()) return free;
  for (const topology::NvmlGpu& gpu : *gpus) {
    if (gpu.memory_bytes > 0) free[gpu.bus_id] = gpu.free_bytes;
  }
  return free;
}

using Launcher = std::optional<topology::LauncherEnvironment>;

// The ranks of this machine and the GPUs that they may use, without the memory
// that they need.
DeviceNeeds RanksHere(const Settings& settings, const Launcher& launcher) {
  DeviceNeeds needs;
  needs.ranks_here = settings.parallel.mesh.world_size();
  needs.shares_gpus = settings.engine == "in_process";
  // Under a launcher, other ranks of this run may already use the memory.
  if (!launcher.has_value()) {
    needs.free_bytes = FreeGpuMemory();
    return needs;
  }
  needs.ranks_here = launcher->local_world_size.value_or(1);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  needs.has_own_gpu = visible != nullptr && *visible != '\0' &&
                      !absl::StrContains(visible, ",");
  return needs;
}

// Sets the needs of a run of `settings` on GPUs: the device memory of the rank
// that needs most, and whether the sizes are valid for fp8.
absl::Status SetDeviceNeeds(Settings settings, DeviceNeeds& needs) {
  settings.report = settings.dry_run = false;
  settings.quiet = true;
  if (settings.device.empty()) settings.device = "cuda";
  std::ostringstream ignored;
  TESSERA_ASSIGN_OR_RETURN(const CheckedRun run, CheckRun(settings, ignored));
  TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
                           MakePrediction(run.settings, run.identity.model,
                                          {.room = MachineRoom()}));
  needs.bytes = prediction.device_bytes();
  if (!settings.parallel.fp8) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const RunOptions options,
                           RunOptionsFrom(run.settings, run.identity.model));
  needs.possible = CheckFp8Sizes(options);
  return absl::OkStatus();
}

// Replaces an empty --device if GPUs are selected; it remains empty for the
// processor. A dry run for GPUs requires no GPU.
absl::Status SetDevice(const Launcher& launcher, std::ostream& err,
                       Settings& settings) {
  if (settings.device == "cpu" || settings.device == "emulated") {
    return absl::OkStatus();
  }
  const bool is_first = !launcher.has_value() || launcher->local_rank == 0;
  const auto note = [&](std::string_view text) {
    if (is_first && !text.empty()) err << "train: " << text << std::endl;
  };
  DeviceNeeds needs = RanksHere(settings, launcher);
  const auto found = FindCudaDevices();
  const bool has_gpus = found.ok() && !found->empty();
  if (has_gpus) TESSERA_RETURN_IF_ERROR(SetDeviceNeeds(settings, needs));
  const auto choice = ChooseDevice(settings.device, found, needs);
  if (settings.dry_run && !choice.ok()) {
    if (has_gpus) note(choice.status().message());
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(choice.status());
  if (choice->device != "cpu") settings.device = choice->device;
  note(choice->note);
  if (settings.dry_run || !is_first ||
      !absl::StartsWith(settings.device, "cuda")) {
    return absl::OkStatus();
  }
  const absl::Status cudnn = tensor_parallel::native::CheckCudnn();
  if (!cudnn.ok()) {
    note(absl::StrCat(
        "attention is computed without cuDNN, which is many times slower: ",
        cudnn.message()));
  }
  return absl::OkStatus();
}

// The launcher of this process, if it is known before ranks meet.
Launcher LauncherOf(const Settings& settings) {
  return FindLauncher(settings).value_or(std::nullopt);
}

// The memory of this machine and of the GPUs that ranks use.
absl::StatusOr<MachineRoom> RoomHere(const Settings& settings) {
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
  if (!absl::StartsWith(settings.device, "cuda")) return room;
  const auto device = FindDeviceRoom(settings.device, FindCudaDevices(),
                                     RanksHere(settings, LauncherOf(settings)));
  if (device.ok()) room.device = *device;
  return room;
}

// RoomHere with the measured memory of a process and the text, which every rank
// holds.
absl::StatusOr<MachineRoom> RoomFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const text::Samples& samples) {
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, RoomHere(settings));
  TESSERA_ASSIGN_OR_RETURN(const std::string program, tools::OwnPath());
  TESSERA_ASSIGN_OR_RETURN(const int64_t process,
                           MeasureProcess(settings, model, program));
  room.process = process + samples.memory_bytes();
  return room;
}

// Changes the settings so that they fit into --memory_limit, prints the choice
// to `err`, and lowers `room` to the limit.
absl::Status FitIntoLimit(const model_files::ModelConfig& model,
                          std::ostream& err, MachineRoom& room,
                          Settings& settings) {
  const ByteSize limit = settings.parallel.memory_limit;
  TESSERA_ASSIGN_OR_RETURN(
      const MemoryRung choice,
      FitMemoryLimit(settings, model, ScratchOf(settings),
                     [&](const Settings& one) -> absl::StatusOr<int64_t> {
                       TESSERA_ASSIGN_OR_RETURN(
                           const RunPrediction prediction,
                           MakePrediction(one, model, {.room = room}));
                       return prediction.needed;
                     }));
  if (!settings.quiet) err << "train: " << DescribeChoice(choice) << std::endl;
  settings = choice.settings;
  if (limit.bytes() < room.bytes) {
    room.bytes = limit.bytes();
    room.limit = "--memory_limit";
  }
  return absl::OkStatus();
}

// The locations of ranks that this process knows before ranks meet.
std::vector<collectives::RankLocation> LocationsBeforeStart(
    const Settings& settings) {
  const Launcher launcher = LauncherOf(settings);
  if (!launcher.has_value()) return {};
  return LocationsOf(*launcher);
}

absl::Status CheckParameterGroups(const Settings& settings,
                                  const RunIdentity& run) {
  TESSERA_ASSIGN_OR_RETURN(const auto groups,
                           zero3::ParseParameterGroups(settings.param_groups));
  if (groups.empty()) return absl::OkStatus();
  const auto names = TrainedTensors(run.model, run.lora);
  return tools::FlagError("param_groups", settings.param_groups,
                          zero3::CheckPatternsMatch(groups, names));
}

absl::StatusOr<CheckedRun> CheckRun(const Settings& settings,
                                    std::ostream& err) {
  CheckedRun run = {.settings = settings};
  TESSERA_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(settings));
  run.tokenizer = data.tokenizer;
  const int64_t vocabulary = data.tokenizer->vocabulary_size();
  TESSERA_ASSIGN_OR_RETURN(const model_files::ModelConfig model,
                           ModelOf(settings, vocabulary));
  run.identity = IdentityOf(settings, model, data);
  TESSERA_RETURN_IF_ERROR(CheckParameterGroups(settings, run.identity));
  const bool is_limited = settings.parallel.memory_limit != ByteSize();
  if (!settings.report && !settings.dry_run && !is_limited) return run;
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room,
                           RoomFor(settings, model, *data.samples));
  if (is_limited) {
    TESSERA_RETURN_IF_ERROR(FitIntoLimit(model, err, room, run.settings));
  }
  if (settings.dry_run) {
    TESSERA_ASSIGN_OR_RETURN(
        run.settings.order,
        ChooseOrder(run.settings, model, LocationsBeforeStart(settings)));
  }
  TESSERA_ASSIGN_OR_RETURN(run.prediction,
                           PredictRun(run.settings, model, {.room = room}));
  return run;
}

// Checks memory before any rank starts, assuming that ranks have the program
// and text of this process.
absl::Status CheckMemory(const Settings& settings,
                         const model_files::ModelConfig& model,
                         int64_t ranks_here, std::ostream& err) {
  const absl::StatusOr<MachineRoom> room = RoomHere(settings);
  // If the limit is unknown, every run is accepted.
  if (!room.ok()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      const RunPrediction prediction,
      PredictRun(settings, model, {.room = *room, .ranks_here = ranks_here}));
  return CheckRoom(settings, prediction, err);
}

// True if the run makes the file's directory, with --run_dir.
bool IsInNewRunDirectory(const fs::path& file, const std::string& run_dir) {
  std::error_code error;
  const fs::path run = fs::absolute(run_dir + "/", error).lexically_normal();
  return !run_dir.empty() && !fs::exists(run, error) &&
         fs::absolute(file, error).lexically_normal().parent_path() ==
             run.parent_path();
}

// Only the run opens a device or a pipe.
absl::Status CheckOutputFile(std::string_view flag, const std::string& file,
                             const std::string& run_dir) {
  std::error_code error;
  if (file.empty() || fs::is_other(file, error) ||
      IsInNewRunDirectory(file, run_dir)) {
    return absl::OkStatus();
  }
  if (fs::is_directory(file, error)) {
    return RefuseFlag(flag, file, "is a directory; give a file");
  }
  const absl::Status status = AtomicFile::Create(file).status();
  if (status.ok()) return status;  // The file is removed again.
  return RefuseFlag(
      flag, file,
      absl::StrCat(status.message(),
                   "; give a file in an existing, writable directory"));
}

absl::Status CheckOutputs(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(CheckSaveTarget(settings));
  for (const auto& [flag, file] :
       {std::pair("metrics", &settings.metrics),
        std::pair("trace", &settings.trace), std::pair("html", &settings.html),
        std::pair("prometheus_file", &settings.prometheus_file)}) {
    TESSERA_RETURN_IF_ERROR(CheckOutputFile(flag, *file, settings.run_dir));
  }
  if (settings.tensorboard.empty()) return absl::OkStatus();
  std::error_code error;
  fs::path parent = fs::absolute(settings.tensorboard, error);
  while (parent.has_relative_path() && !fs::exists(parent, error)) {
    parent = parent.parent_path();
  }
  if (fs::is_directory(parent, error)) return absl::OkStatus();
  return RefuseFlag("tensorboard", settings.tensorboard,
                    absl::StrCat(QuotedPath(parent.string()),
                                 " is not a directory; give a directory"));
}

void PrintPrediction(const CheckedRun& run, std::ostream& out) {
  if (run.settings.format == "json") {
    out << PredictionAsJson(*run.prediction);
  } else {
    PrintPredictionText(*run.prediction, out);
  }
}

}  // namespace
}  // namespace tessera::train
