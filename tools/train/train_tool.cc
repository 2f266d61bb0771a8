#include "tools/train/train_tool.h"

#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "tools/launch/launch_command.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/launch/attempt.h"
#include "tools/train/launch/finish.h"
#include "tools/train/launch/launched_rank.h"
#include "tools/train/launch/memory_strategy.h"
#include "tools/train/launch/rank_process.h"
#include "tools/train/launch/rehearsal.h"
#include "tools/train/launch/resume.h"
#include "tools/train/launch/room_check.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/supervise.h"
#include "tools/train/launch/trainer.h"
#include "tools/train/launch/world.h"
#include "tools/train/loop/process_memory.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/predict/machine_room.h"
#include "tools/train/predict/predict_run.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/model_of.h"
#include "tools/train/settings/settings_flags.h"
#include "tools/train/settings/settings_json.h"

namespace tessera::train {
namespace {

// What the flags say, and is not refused.
struct Checked {
  Settings settings = {};
  std::shared_ptr<const text::Tokenizer> tokenizer = nullptr;
  RunIdentity identity = {};
  std::optional<RunPrediction> prediction = std::nullopt;  // Where needed.
};

// Each rank has the text too.
absl::StatusOr<MachineRoom> RoomFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const text::Corpus& corpus) {
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
  TESSERA_ASSIGN_OR_RETURN(const std::string program, tools::OwnPath());
  TESSERA_ASSIGN_OR_RETURN(const int64_t process,
                           MeasureProcess(settings, model, program));
  room.process = process + corpus.memory_bytes();
  return room;
}

// The settings with what --memory_limit makes of them, which `err` is told, and
// the limit as the room.
absl::Status HoldMemoryLimit(const model_files::ModelConfig& model,
                             std::ostream& err, MachineRoom& room,
                             Settings& settings) {
  const ByteSize limit = settings.parallel.memory_limit;
  TESSERA_ASSIGN_OR_RETURN(
      const MemoryRung choice,
      FitMemoryLimit(settings, model, ScratchOf(settings),
                     [&](const Settings& one) -> absl::StatusOr<int64_t> {
                       TESSERA_ASSIGN_OR_RETURN(
                           const RunPrediction prediction,
                           PredictRun(one, model, {.room = room}));
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

absl::StatusOr<Checked> CheckData(const Settings& settings, std::ostream& err) {
  Checked checked = {.settings = settings};
  TESSERA_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(settings));
  checked.tokenizer = data.tokenizer;
  const int64_t vocabulary = data.tokenizer->vocabulary_size();
  TESSERA_ASSIGN_OR_RETURN(const model_files::ModelConfig model,
                           ModelOf(settings, vocabulary));
  checked.identity = {.model = model,
                      .seed = static_cast<uint64_t>(settings.seed),
                      .batch = settings.batch,
                      .length = settings.length,
                      .corpus = data.corpus->fingerprint(),
                      .vocabulary = vocabulary};
  const bool is_limited = settings.parallel.memory_limit != ByteSize();
  if (!settings.report && !settings.dry_run && !is_limited) return checked;
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room,
                           RoomFor(settings, model, *data.corpus));
  if (is_limited) {
    TESSERA_RETURN_IF_ERROR(
        HoldMemoryLimit(model, err, room, checked.settings));
  }
  TESSERA_ASSIGN_OR_RETURN(checked.prediction,
                           PredictRun(checked.settings, model, {.room = room}));
  return checked;
}

// By what this process has of program and text: no rank has been started.
absl::Status CheckMemory(const Settings& settings,
                         const model_files::ModelConfig& model,
                         int64_t ranks_here, std::ostream& err) {
  const absl::StatusOr<MachineRoom> room = ReadMachineRoom();
  // Where nothing says how much there is, nothing is too much.
  if (!room.ok()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
                           PredictRun(settings, model,
                                      {.room = *room,
                                       .ranks_here = ranks_here,
                                       .first_advice_only = true}));
  return CheckRoom(settings, prediction, err);
}

// What failed while ranks ran is no mistake of the command line.
absl::Status AsFailedRun(const absl::Status& status) {
  return absl::IsInvalidArgument(status)
             ? absl::FailedPreconditionError(status.message())
             : status;
}

void Announce(const Checked& checked, const RunDirectory& directory,
              std::ostream& err) {
  const Settings& settings = checked.settings;
  if (settings.quiet) return;
  err << absl::StrFormat(
             "train: %s, %.2f million parameters, on %s over %s; it leaves "
             "what it makes in %s",
             settings.model,
             static_cast<double>(checked.identity.model.ParameterCount()) / 1e6,
             settings.parallel.mesh.ToFlag(), settings.engine, directory.path())
      << std::endl;
}

// The ranks' settings of a run.
Settings In(const RunDirectory& directory, Settings settings) {
  settings.run_dir = directory.path();
  if (settings.metrics.empty()) settings.metrics = directory.metrics();
  return settings;
}

class TrainJob {
 public:
  TrainJob(const Checked& checked, RunDirectory directory, std::ostream& out,
           std::ostream& err)
      : checked_(checked),
        directory_(std::move(directory)),
        out_(out),
        err_(err) {}

  absl::Status Run(int& exit_code);

 private:
  absl::StatusOr<std::string> Train(int& exit_code);
  AttemptOutcome Attempt(const Settings& settings);
  absl::Status Explain(const absl::Status& status, bool is_kept) const;

  const Checked& checked_;
  const RunDirectory directory_;
  std::ostream& out_;
  std::ostream& err_;
  std::string program_;
};

AttemptOutcome TrainJob::Attempt(const Settings& settings) {
  out_.flush();
  return RunAttempt(settings, {.files = {directory_.exchange()},
                               .program = program_,
                               .sinks = {},
                               .is_terminal = isatty(STDERR_FILENO) == 1});
}

absl::StatusOr<std::string> TrainJob::Train(int& exit_code) {
  AttemptOutcome outcome = Supervise(
      In(directory_, checked_.settings),
      {.attempt = [&](const Settings& s) { return Attempt(s); },
       .last_checkpoint = [&] { return directory_.LastCheckpoint(); },
       .is_valid = [](const Settings& s) { return CheckSettings(s).ok(); },
       .notice =
           [&](const std::string& line) {
             err_ << "train: " << line << std::endl;
           }});
  if (outcome.signal.has_value()) exit_code = 128 + *outcome.signal;
  const bool is_kept = directory_.CleanUp();
  if (!outcome.status.ok()) return Explain(outcome.status, is_kept);
  return std::move(outcome.result);
}

// With what to do next.
absl::Status TrainJob::Explain(const absl::Status& status, bool is_kept) const {
  const std::string checkpoint = is_kept ? directory_.LastCheckpoint() : "";
  if (checkpoint.empty()) return AsFailedRun(status);
  return AsFailedRun(absl::Status(
      status.code(), absl::StrCat(status.message(), "; go on by --run_dir=",
                                  directory_.path(), " --resume=latest")));
}

absl::Status TrainJob::Run(int& exit_code) {
  TESSERA_ASSIGN_OR_RETURN(program_, tools::OwnPath());
  TESSERA_RETURN_IF_ERROR(
      WriteSettings(checked_.settings, directory_.config()));
  Announce(checked_, directory_, err_);
  TESSERA_ASSIGN_OR_RETURN(const std::string result, Train(exit_code));
  const auto again =
      [&](const Settings& settings) -> absl::StatusOr<std::string> {
    AttemptOutcome outcome = Attempt(settings);
    if (outcome.signal.has_value()) exit_code = 128 + *outcome.signal;
    if (!outcome.status.ok()) return outcome.status;
    return std::move(outcome.result);
  };
  return AsFailedRun(FinishRun({checked_.settings, checked_.tokenizer,
                                checked_.prediction, directory_, again},
                               result, out_, err_));
}

// A rank whose error follows from another one's is silent, unless it is the
// first: the launcher names a rank that died.
absl::Status TellOnce(const topology::LauncherEnvironment& place,
                      const absl::Status& status, int& exit_code) {
  if (status.ok()) return status;
  exit_code = 1;
  const bool is_first = place.rank.value() == 0;
  // Who waited in vain says for whom: where a host is cut off nobody else can.
  const bool waited = absl::IsDeadlineExceeded(status);
  if (!is_first && !waited && MayBeConsequence(status)) return absl::OkStatus();
  return AsFailedRun(NameRank({place.rank.value(), 0, status}));
}

// Before ranks meet; the first one of each host says so for it.
absl::Status CheckMemoryOfHost(const Settings& settings,
                               const topology::LauncherEnvironment& place,
                               std::ostream& err, int& exit_code) {
  const absl::StatusOr<Checked> checked = CheckData(settings, err);
  // Ranks tell of errors once they have met.
  if (!checked.ok()) return absl::OkStatus();
  std::ostringstream warning;
  const absl::Status status =
      CheckMemory(settings, checked->identity.model,
                  place.local_world_size.value_or(1), warning);
  if (place.local_rank != 0) {
    if (!status.ok()) exit_code = 2;
    return absl::OkStatus();
  }
  err << warning.str() << std::flush;
  return status;
}

absl::Status RunOneRank(const Settings& settings,
                        const topology::LauncherEnvironment& place,
                        std::ostream& out, std::ostream& err, int& exit_code) {
  Settings quick = settings;
  quick.report = false;  // Nothing is measured yet.
  TESSERA_RETURN_IF_ERROR(CheckMemoryOfHost(quick, place, err, exit_code));
  if (exit_code != 0) return absl::OkStatus();
  // No rank explains another one's trouble before they have met: each tells
  // its own.
  absl::StatusOr<World> world =
      JoinWorld(settings, collectives::ProcessEnvironment());
  if (!world.ok()) {
    return AsFailedRun(NameRank({place.rank.value(), 0, world.status()}));
  }
  const absl::StatusOr<LaunchedRun> run =
      RunLaunchedRank(settings, *world, MakeTrainer, err);
  if (!run.ok()) return TellOnce(place, run.status(), exit_code);
  if (!run->is_first) return absl::OkStatus();
  run->directory.CleanUp();
  TESSERA_ASSIGN_OR_RETURN(const Checked checked,
                           CheckData(run->settings, err));
  const auto alone = [](const Settings& one) -> absl::StatusOr<std::string> {
    TESSERA_ASSIGN_OR_RETURN(const RankProgram program, MakeTrainer(one));
    return RunThreads(one, program);
  };
  return AsFailedRun(FinishRun({run->settings, checked.tokenizer,
                                checked.prediction, run->directory, alone},
                               run->result, out, err));
}

absl::Status DryRun(const Settings& settings, std::ostream& out,
                    std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(const Checked checked, CheckData(settings, err));
  if (settings.format == "json") {
    out << PredictionAsJson(*checked.prediction);
  } else {
    PrintPredictionText(*checked.prediction, out);
  }
  return absl::OkStatus();
}

}  // namespace

const tools::Tool& TrainTool() {
  static const tools::Tool* const tool = new tools::Tool{
      .name = "train",
      .summary = "Trains a Llama-architecture model over a mesh of ranks.",
      .example = "--mesh=dp2,pp2,tp2 --steps=60",
      .flags = TrainFlags()};
  return *tool;
}

absl::Status RunTrainTool(std::ostream& out, std::ostream& err,
                          int& exit_code) {
  TESSERA_ASSIGN_OR_RETURN(const Settings settings, SettingsFromFlags());
  TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
  if (settings.dry_run) return DryRun(settings, out, err);
  TESSERA_RETURN_IF_ERROR(CheckEngine(settings));
  TESSERA_ASSIGN_OR_RETURN(const auto launcher, FindLauncher(settings));
  if (launcher.has_value()) {
    // Ranks that start by themselves would each choose on their own.
    if (settings.parallel.memory_limit != ByteSize()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--memory_limit=", settings.parallel.memory_limit.ToString(),
          ": is for runs that start their ranks themselves; under a launcher "
          "give what it would choose, as --dry_run --memory_limit=",
          settings.parallel.memory_limit.ToString(), " prints it"));
    }
    return RunOneRank(settings, *launcher, out, err, exit_code);
  }
  TESSERA_ASSIGN_OR_RETURN(Checked checked, CheckData(settings, err));
  TESSERA_RETURN_IF_ERROR(CheckMemory(checked.settings, checked.identity.model,
                                      /*ranks_here=*/0, err));
  TESSERA_ASSIGN_OR_RETURN(checked.settings.resume,
                           FindResumePoint(settings, checked.identity));
  TESSERA_ASSIGN_OR_RETURN(RunDirectory directory,
                           RunDirectory::Create(settings));
  return TrainJob(checked, std::move(directory), out, err).Run(exit_code);
}

int TrainMain(int argc, char** argv) {
  ReturnFreedBlocks();  // Rank processes call it here, too.
  if (IsRankProcess(argc, argv)) {
    return RankProcessMain(argc, argv, MakeTrainer);
  }
  int outcome = 0;
  const std::vector<std::string> arguments =
      TrainArguments(std::vector<std::string>(argv + 1, argv + argc));
  const int code = tools::RunTool(
      TrainTool(), arguments, std::cout, std::cerr,
      [&] { return RunTrainTool(std::cout, std::cerr, outcome); });
  std::cout.flush();
  if (code == 0 && !std::cout) {
    std::cerr << "train: standard output could not be written\n";
    return 1;
  }
  // What RunTool cannot know: a signal, or a failure that another rank tells.
  return outcome != 0 && code != 2 ? outcome : code;
}

}  // namespace tessera::train
