#include "tools/train/loop/worker.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"
#include "offload/pressure/pressure_gauge.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/loop/result_gatherer.h"
#include "tools/train/step/run_progress.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/run_trace.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/step_meter.h"
#include "tools/train/report/step_outputs.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings.h"
#include "topology/config/strategies.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

// The slowest rank may be writing.
constexpr absl::Duration kPatience = absl::Minutes(30);

// A temporary directory that all ranks use. Rank 0 creates it, and removes it
// with its contents.
class CommonDirectory {
 public:
  // A collective of the world.
  static absl::StatusOr<std::unique_ptr<CommonDirectory>> Create(
      collectives::Communicator& world) {
    std::unique_ptr<CommonDirectory> directory(new CommonDirectory);
    absl::Status made;
    if (world.rank() == collectives::Rank(0)) made = directory->Make();
    TESSERA_RETURN_IF_ERROR(collectives::AgreeOnStatus(world, made, kPatience));
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<std::string> paths,
        collectives::ExchangeTexts(world, directory->path_, kPatience));
    directory->path_ = std::move(paths[0]);
    return directory;
  }
  ~CommonDirectory() {
    std::error_code ignored;
    if (is_own_) std::filesystem::remove_all(path_, ignored);
  }
  CommonDirectory(const CommonDirectory&) = delete;
  CommonDirectory& operator=(const CommonDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  CommonDirectory() = default;
  absl::Status Make() {
    std::error_code error;
    const auto parent = std::filesystem::temp_directory_path(error);
    path_ = absl::StrCat(error ? "/tmp" : parent.string(), "/train-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path_));
    }
    is_own_ = true;
    return absl::OkStatus();
  }

  std::string path_;
  bool is_own_ = false;
};

// A checkpoint to which the run may return.
struct SavedStep {
  int64_t steps = 0;  // The run's steps.
  int64_t optimizer_steps = 0;
  std::string path = {};
};

class Worker {
 public:
  Worker(collectives::Communicator& world, const Settings& settings,
         const model_files::ModelConfig& model, const TrainingData& data,
         const WorkerSinks& sinks)
      : world_(world),
        settings_(settings),
        model_(model),
        data_(data),
        sinks_(sinks),
        memory_before_(ReadResidentMemory().resident),
        results_(world) {}

  // Aborts the world on failure.
  absl::StatusOr<RunResult> Run();

 private:
  bool is_first() const { return world_.rank() == collectives::Rank(0); }
  // Ranks are threads and share one process's memory.
  bool shares_process() const { return world_.engine_name() == "in_process"; }
  std::string RankName() const;

  absl::StatusOr<RunResult> RunOrFail();
  absl::Status MakeDevice();
  int FillThreads() const;
  absl::Status MakeMeter();
  absl::Status MakeRank();
  absl::Status MakeTrace();
  absl::Status MakeWatch();
  std::string Checkpoints() const;
  absl::StatusOr<std::string> BestCheckpoint() const;
  absl::StatusOr<double> BestLoss() const;
  absl::Status Restore();
  absl::Status MakeCheckpoints();
  void NoteCheckpoint(std::string path);
  absl::Status OpenOutputs();
  absl::StatusOr<std::string> NonFiniteFindings() const;
  absl::StatusOr<std::string> FindNonFinite(const StepRecord& record);
  absl::Status TakeStep();
  absl::StatusOr<bool> RollBackIfSpike(const std::vector<double>& losses,
                                       const StepRecord& record,
                                       const std::string& non_finite);
  absl::StatusOr<std::optional<SavedStep>> LastSavedBy(int64_t step);
  absl::Status GoBackTo(const SavedStep& saved, Rollback& rollback);
  absl::Status Report(StepRecord record);
  absl::Status EvaluateIfDue(StepRecord& record);
  absl::Status TestIfDue(StepRecord& record);
  void Say(std::string_view line);
  void RestartWatch();
  absl::Status WatchMemory();
  absl::Status ChangeStrategy(int64_t used);
  absl::StatusOr<MemoryRung> NextRung(int64_t used) const;
  absl::Status TakeFromFirst(std::string& text) const;
  absl::StatusOr<std::string> SaveFor(
      const absl::StatusOr<MemoryRung>& rung,
      std::unique_ptr<CommonDirectory>& scratch);
  absl::Status GoOnWith(const Settings& next, const std::string& checkpoint);
  std::optional<double> EvalLossNow() const;
  absl::Status CheckpointIfDue();
  absl::Status StartCheckpoint();
  absl::Status SaveLast();
  absl::Status Finish();

  collectives::Communicator& world_;
  Settings settings_;  // Changes with the strategy.
  const model_files::ModelConfig& model_;
  const TrainingData& data_;
  const WorkerSinks& sinks_;
  const int64_t memory_before_;

  // Members refer to earlier ones.
  std::unique_ptr<RankDevice> device_;
  int64_t clock_offset_ = 0;
  std::optional<StepMeter> meter_;
  std::unique_ptr<OffloadTiers> tiers_;
  std::unique_ptr<TrainRank> rank_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<StepOutputs> outputs_;  // On rank 0.
  std::optional<MemoryWatch> watch_;      // With --memory_limit.
  int64_t memory_limit_ = 0;
  int64_t peak_ = 0;              // Resident, outside of watched steps.
  bool changes_strategy_ = true;  // Higher rungs may exist.
  topology::MemoryStrategy strategy_ = topology::MemoryStrategy::kBasic;
  std::vector<StrategyChange> strategy_changes_;
  ResultGatherer results_;
  int64_t checkpointed_ = -1;  // Steps at the last checkpoint.
  // The checkpoints of this run's past, oldest first. Old ones may have been
  // removed.
  std::vector<SavedStep> saved_;
  std::optional<double> eval_loss_;
  int64_t evaluated_ = -1;  // Steps at the last validation.
  // With --keep_best, the least validation loss of a checkpoint.
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t skipped_in_a_row_ = 0;
};

// "rank 3 (dp1 pp0 cp0 tp1)".
std::string Worker::RankName() const {
  const TrainRank::Groups& groups = rank_->groups();
  return absl::StrCat("rank ", world_.rank().value(), " (dp",
                      groups.data->rank().value() / groups.cp->size(), " pp",
                      groups.pp->rank().value(), " cp",
                      groups.cp->rank().value(), " tp",
                      groups.tp->rank().value(), ")");
}

absl::StatusOr<RunResult> Worker::Run() {
  absl::StatusOr<RunResult> result = RunOrFail();
  if (result.ok()) return result;
  const absl::Status error =
      Annotate(result.status(), absl::StrCat("rank ", world_.rank().value()));
  if (sinks_.collectives != nullptr) {
    sinks_.collectives->AbortAll(absl::AbortedError(error.message()));
  }
  world_.Abort(error.message());
  return error;
}

absl::StatusOr<RunResult> Worker::RunOrFail() {
  // The peak excludes reading the text and measuring collectives.
  offload::ReturnFreeMemory();
  RestartPeakMemory();
  TESSERA_RETURN_IF_ERROR(MakeDevice());
  TESSERA_RETURN_IF_ERROR(MakeMeter());
  TESSERA_RETURN_IF_ERROR(MakeRank());
  TESSERA_RETURN_IF_ERROR(MakeTrace());
  TESSERA_RETURN_IF_ERROR(MakeWatch());
  TESSERA_RETURN_IF_ERROR(Restore());
  TESSERA_RETURN_IF_ERROR(MakeCheckpoints());
  TESSERA_RETURN_IF_ERROR(OpenOutputs());
  results_.Begin(rank_->steps());
  RestartWatch();
  while (rank_->steps() < settings_.steps) {
    TESSERA_RETURN_IF_ERROR(TakeStep());
  }
  TESSERA_RETURN_IF_ERROR(Finish());
  results_.AddRank(*rank_, *tiers_);
  TESSERA_ASSIGN_OR_RETURN(
      RunResult result,
      results_.Result(
          memory_before_, std::max(peak_, watch_ ? watch_->peak() : int64_t{0}),
          checkpoints_ == nullptr ? "" : checkpoints_->last_path()));
  result.strategy_changes = strategy_changes_;
  return result;
}

// With --force a GPU may have less memory than predicted. Then memory is not
// allocated at the start; each request is an allocation.
absl::Status Worker::MakeDevice() {
  int64_t bytes = 0;
  if (!settings_.device.empty() && settings_.device != "cpu" &&
      !settings_.force) {
    TESSERA_ASSIGN_OR_RETURN(
        const RunPrediction prediction,
        MakePrediction(settings_, model_, {.room = MachineRoom()}));
    bytes = prediction.device_bytes();
  }
  TESSERA_ASSIGN_OR_RETURN(
      device_, RankDevice::Create(
                   settings_, world_,
                   {.local_rank = sinks_.local_rank, .memory_bytes = bytes}));
  return absl::OkStatus();
}

absl::Status Worker::MakeMeter() {
  TESSERA_ASSIGN_OR_RETURN(clock_offset_, ClockOffset(world_));
  meter_.emplace(device_->ops(), sinks_.collectives, clock_offset_);
  return absl::OkStatus();
}

// The number of threads that initialize weights. Nothing else runs meanwhile,
// so the ranks of the machine share all its processors, independent of
// --threads.
int Worker::FillThreads() const {
  const int64_t ranks = sinks_.local_ranks.value_or(world_.size());
  return static_cast<int>(
      std::max(settings_.threads, AvailableProcessors() / ranks));
}

absl::Status Worker::MakeRank() {
  TESSERA_ASSIGN_OR_RETURN(RunOptions options,
                           RunOptionsFrom(settings_, model_));
  if (settings_.document_attention) {
    options.document_end = data_.tokenizer->end_of_text();
  }
  TESSERA_ASSIGN_OR_RETURN(tiers_,
                           OffloadTiers::Create(settings_, meter_->tiers()));
  tiers_->AddTo(options);
  options.state.ops = device_->state_ops();
  options.state.adamw.pool = options.state.sgd.pool = device_->pool();
  options.state.fill_threads = FillThreads();
  // Predictions have no device.
  options.graphs = settings_.cuda_graphs == "on"     ? GraphChoice::kOn
                   : settings_.cuda_graphs == "auto" ? GraphChoice::kAuto
                                                     : GraphChoice::kOff;
  TESSERA_ASSIGN_OR_RETURN(
      rank_, TrainRank::Create(device_->world(), options, *data_.samples,
                               meter_->ops()));
  return absl::OkStatus();
}

absl::Status Worker::MakeTrace() {
  if (settings_.trace.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      trace_, RunTrace::Create(world_, UserPath(settings_.trace), RankName(),
                               clock_offset_));
  return absl::OkStatus();
}

absl::Status Worker::MakeWatch() {
  memory_limit_ = settings_.parallel.memory_limit.bytes();
  if (memory_limit_ == 0) return absl::OkStatus();
  watch_.emplace(memory_limit_ / (shares_process() ? 1 : world_.size()),
                 sinks_.memory.value_or(MemoryWatch::RealSystem()));
  return absl::OkStatus();
}

std::string Worker::Checkpoints() const {
  return UserPath(settings_.run_dir) + "/checkpoints";
}

// Returns rank 0's choice on all ranks. A collective.
absl::StatusOr<std::string> Worker::BestCheckpoint() const {
  absl::StatusOr<zero3::FoundCheckpoint> best = zero3::FoundCheckpoint();
  if (is_first()) {
    best = zero3::LeastCheckpoint(Checkpoints(), std::string(kEvalLossKey));
  }
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world_, best.status(), kPatience),
      Annotate(_, "--resume=best"));
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(best->path));
  return best->path;
}

// The least validation loss among the existing checkpoints, as rank 0 sees
// them. A collective.
absl::StatusOr<double> Worker::BestLoss() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::string text;
  if (is_first()) {
    const std::string key(kEvalLossKey);
    const auto best = zero3::LeastCheckpoint(Checkpoints(), key);
    if (best.ok()) {
      TESSERA_ASSIGN_OR_RETURN(const auto manifest,
                               zero3::ReadManifest(best->path));
      text = manifest.parts[0].metadata.at(key);
    }
  }
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(text));
  double loss = kInfinity;
  return absl::SimpleAtod(text, &loss) ? loss : kInfinity;
}

absl::Status Worker::Restore() {
  if (settings_.resume.empty()) return absl::OkStatus();
  std::string path =
      settings_.resume == "latest" ? Checkpoints() : UserPath(settings_.resume);
  if (settings_.resume == "best") {
    TESSERA_ASSIGN_OR_RETURN(path, BestCheckpoint());
  }
  absl::StatusOr<std::string> found = path;
  if (is_first()) found = ResolveCheckpoint(path);
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world_, found.status(), kPatience),
      Annotate(_, absl::StrCat("--resume=", settings_.resume)));
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(*found));
  TESSERA_RETURN_IF_ERROR(
      RestoreRun(*found, IdentityOf(settings_, model_, data_), *rank_),
      Annotate(_, absl::StrCat("--resume=", settings_.resume)));
  NoteCheckpoint(*std::move(found));
  return absl::OkStatus();
}

// Records that the checkpoint at `path` contains the current state.
void Worker::NoteCheckpoint(std::string path) {
  checkpointed_ = rank_->steps();
  saved_.push_back({rank_->steps(), rank_->state().steps(), std::move(path)});
}

absl::Status Worker::MakeCheckpoints() {
  if (settings_.run_dir.empty()) return absl::OkStatus();
  // Checkpoints are written in the background: the rank does not wait for the
  // collectives of their groups.
  if (sinks_.collectives != nullptr) sinks_.collectives->SetOn(false);
  absl::StatusOr<std::unique_ptr<RunCheckpoints>> checkpoints =
      RunCheckpoints::Create(
          *rank_, {.directory = Checkpoints(),
                   .keep = settings_.keep_checkpoints,
                   .keep_best = settings_.keep_best,
                   .identity = IdentityOf(settings_, model_, data_)});
  if (sinks_.collectives != nullptr) sinks_.collectives->SetOn(true);
  TESSERA_ASSIGN_OR_RETURN(checkpoints_, std::move(checkpoints));
  if (settings_.keep_best) {
    TESSERA_ASSIGN_OR_RETURN(best_loss_, BestLoss());
  }
  return absl::OkStatus();
}

absl::Status Worker::OpenOutputs() {
  if (!is_first()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      outputs_, StepOutputs::Open({.settings = settings_,
                                   .first_step = rank_->steps(),
                                   .ranks = world_.size(),
                                   .run = &rank_->options(),
                                   .table = sinks_.table,
                                   .is_terminal = sinks_.is_terminal}));
  return absl::OkStatus();
}

// Lists the ranks that found infinite or NaN numbers: "rank 2: a loss of nan in
// its samples, 17 gradient elements". A collective.
absl::StatusOr<std::string> Worker::NonFiniteFindings() const {
  constexpr size_t kMostNamed = 4;
  const StepFinding& own = rank_->finding();
  std::vector<std::string> parts;
  if (!std::isfinite(own.loss)) {
    parts.push_back(absl::StrCat("a loss of ", own.loss, " in its samples"));
  }
  if (own.non_finite > 0) {
    parts.push_back(absl::StrCat(own.non_finite, " gradient elements"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           collectives::ExchangeTexts(
                               world_, absl::StrJoin(parts, ", "), kPatience));
  std::vector<std::string> found;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    found.push_back(absl::StrCat("rank ", rank, ": ", texts[rank]));
  }
  const size_t more = found.size() - std::min(found.size(), kMostNamed);
  found.resize(found.size() - more);
  if (more > 0) found.push_back(absl::StrCat(more, " more ranks"));
  return absl::StrJoin(found, "; ");
}

// Returns the reason why the run cannot continue after the step, or "". A step
// with infinite or NaN gradients has changed no weight. Up to
// --max_skipped_steps consecutive such steps are skipped; with dynamic loss
// scaling any number, each of which lowers the scale. Messages count steps from
// 0, like the metrics.
absl::StatusOr<std::string> Worker::FindNonFinite(const StepRecord& record) {
  const zero3::LossScaleOptions& scaling = rank_->options().state.loss_scale;
  const bool scales = scaling.dynamic && record.loss_scale > scaling.least;
  const bool is_finite = std::isfinite(record.loss);
  skipped_in_a_row_ = record.skipped ? skipped_in_a_row_ + 1 : 0;
  if (is_finite && (!record.skipped || scales)) return "";
  TESSERA_ASSIGN_OR_RETURN(const std::string findings, NonFiniteFindings());
  if (record.skipped && skipped_in_a_row_ <= settings_.max_skipped_steps) {
    Say(absl::StrCat(
        "step ", record.step,
        " (from 0) is skipped, since numbers are not finite: ", findings));
    return "";
  }
  const std::string in_a_row =
      settings_.max_skipped_steps > 0 && record.skipped
          ? absl::StrCat("; ", skipped_in_a_row_,
                         " such steps in a row, and --max_skipped_steps=",
                         settings_.max_skipped_steps)
          : "";
  return absl::StrCat(
      "step ", record.step, " (from 0): the loss is ", record.loss,
      ", the gradient norm ", record.gradient_norm, ", at learning rate ",
      record.learning_rate, " and loss scale ", record.loss_scale,
      "; both must be finite (", findings, in_a_row,
      "). Lower --learning_rate, raise --warmup_steps, set --clip_norm, use "
      "--dtype=fp32, or leave such steps out with --max_skipped_steps");
}

absl::Status Worker::TakeStep() {
  if (sinks_.before_step) {
    TESSERA_RETURN_IF_ERROR(sinks_.before_step(rank_->steps()));
  }
  meter_->Begin();
  const std::vector<double> losses_before = rank_->progress().losses;
  TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank_->Step());
  TESSERA_ASSIGN_OR_RETURN(const std::string non_finite, FindNonFinite(record));
  TESSERA_ASSIGN_OR_RETURN(const bool went_back,
                           RollBackIfSpike(losses_before, record, non_finite));
  if (went_back) {
    if (sinks_.on_step) sinks_.on_step();
    return absl::OkStatus();
  }
  if (!non_finite.empty()) return absl::OutOfRangeError(non_finite);
  TESSERA_RETURN_IF_ERROR(Report(record));
  TESSERA_RETURN_IF_ERROR(WatchMemory());
  TESSERA_RETURN_IF_ERROR(CheckpointIfDue());
  if (sinks_.on_step) sinks_.on_step();
  return absl::OkStatus();
}

// `losses` are the losses before the step, `non_finite` is the result of
// FindNonFinite. All ranks see the same losses and make the same decision.
// Without a checkpoint from before the spike the run continues, unless numbers
// are infinite or NaN.
absl::StatusOr<bool> Worker::RollBackIfSpike(const std::vector<double>& losses,
                                             const StepRecord& record,
                                             const std::string& non_finite) {
  const double factor = settings_.spike_factor;
  if (factor == 0) return false;
  const bool is_known = std::ssize(losses) == settings_.spike_window;
  std::optional<LossSpike> spike;
  if (is_known) spike = FindSpike(losses, record.loss, factor);
  // --max_skipped_steps may permit an infinite or NaN loss.
  if (non_finite.empty() && (!spike || !std::isfinite(record.loss))) {
    return false;
  }
  Rollback rollback = {
      .step = record.step,
      .loss = record.loss,
      .usual = spike ? spike->usual : std::numeric_limits<double>::quiet_NaN()};
  const std::string why =
      !non_finite.empty()
          ? non_finite
          : absl::StrFormat(
                "step %d (from 0): the loss %.4g is a spike, %.3g times the "
                "median %.4g of the %d before it (--spike_factor=%g)",
                record.step, record.loss, record.loss / rollback.usual,
                rollback.usual, losses.size(), factor);
  const auto rising = static_cast<int64_t>(spike ? spike->rising : 0);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedStep> saved,
                           LastSavedBy(record.step - rising));
  if (!saved) {
    Say(absl::StrCat(why,
                     "; no checkpoint precedes it, see --checkpoint_every"
                     " and --keep_checkpoints"));
    return false;
  }
  if (record.rollbacks >= settings_.max_rollbacks) {
    return absl::OutOfRangeError(absl::StrCat(
        why, "; the run has gone back ", record.rollbacks,
        " times, and --max_rollbacks=", settings_.max_rollbacks,
        ". Lower --learning_rate, look at the data, or raise --max_rollbacks "
        "or --spike_factor and resume"));
  }
  TESSERA_RETURN_IF_ERROR(GoBackTo(*saved, rollback), Annotate(_, why));
  Say(absl::StrCat(why, ": rollback ", record.rollbacks + 1, " of ",
                   settings_.max_rollbacks, " to step ", rollback.to_step, ", ",
                   saved->path, "; leaves out ", rollback.skipped_samples,
                   " samples"));
  return true;
}

// The newest complete checkpoint after at most `step` steps, as rank 0 sees
// them. Waits for the checkpoint that is being written, whose error fails the
// run.
absl::StatusOr<std::optional<SavedStep>> Worker::LastSavedBy(int64_t step) {
  if (checkpoints_ == nullptr) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(checkpoints_->Wait().status());
  std::string text;
  for (size_t i = saved_.size(); is_first() && text.empty() && i-- > 0;) {
    const SavedStep& saved = saved_[i];
    if (saved.steps <= step &&
        zero3::CheckComplete({saved.optimizer_steps, saved.path}).ok()) {
      text = absl::StrCat(i);
    }
  }
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(text));
  size_t chosen = 0;
  if (!absl::SimpleAtoi(text, &chosen)) return std::nullopt;
  return saved_[chosen];
}

// Restores the checkpoint into a new rank. If it were restored in place,
// publications of the last step might still read memory that is overwritten,
// and the scales of fp8, which checkpoints do not contain, would remain those
// of the spike. Later checkpoints are removed, so that a restart does not find
// them.
absl::Status Worker::GoBackTo(const SavedStep& saved, Rollback& rollback) {
  const int64_t begin = MonotonicNanos();
  const int64_t next_sample = rank_->FirstSampleOf(rank_->steps());
  const RunProgress before = rank_->progress();
  absl::Status removed;
  zero3::CheckpointDirectory directory(zero3::FileCalls::System(),
                                       Checkpoints());
  while (saved_.back().steps > saved.steps) {
    if (is_first()) {
      removed.Update(directory.Remove(saved_.back().optimizer_steps));
    }
    saved_.pop_back();
  }
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world_, removed, kPatience));
  TESSERA_RETURN_IF_ERROR(GoOnWith(settings_, saved.path));
  RunProgress progress = rank_->progress();
  rollback.to_step = progress.steps;
  progress.rollbacks = before.rollbacks + 1;
  progress.skipped_samples +=
      next_sample - rank_->FirstSampleOf(progress.steps);
  rollback.skipped_samples = progress.skipped_samples - before.skipped_samples;
  rank_->SetProgress(std::move(progress));
  evaluated_ = -1;
  skipped_in_a_row_ = 0;
  if (trace_ != nullptr) {
    trace_->AddCheckpoint("rollback", {begin, MonotonicNanos()});
  }
  results_.GoBack(rollback);
  return outputs_ == nullptr ? absl::OkStatus()
                             : outputs_->GoBackTo(rank_->steps());
}

absl::Status Worker::Report(StepRecord record) {
  TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter_->End(*rank_));
  TESSERA_RETURN_IF_ERROR(EvaluateIfDue(record));
  TESSERA_RETURN_IF_ERROR(TestIfDue(record));
  const StepAccount account = AccountOf(activity);
  if (trace_ != nullptr) trace_->Add(activity, account);
  TESSERA_ASSIGN_OR_RETURN(const StepMetrics step,
                           results_.AddStep(record, account, record.tokens));
  return outputs_ == nullptr ? absl::OkStatus() : outputs_->Add(step);
}

absl::Status Worker::TestIfDue(StepRecord& record) {
  if (settings_.test_fraction == 0 || rank_->steps() != settings_.steps) {
    return absl::OkStatus();
  }
  const int64_t begin = MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(
      record.test_loss,
      rank_->Evaluate(data_.samples->test_count() / settings_.batch,
                      text::SampleUse::kTest));
  results_.LeaveOut(MonotonicNanos() - begin);
  return absl::OkStatus();
}

absl::Status Worker::EvaluateIfDue(StepRecord& record) {
  const int64_t every = settings_.eval_every;
  if (every == 0 ||
      (rank_->steps() % every != 0 && rank_->steps() != settings_.steps)) {
    return absl::OkStatus();
  }
  const int64_t begin = MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(record.eval_loss,
                           rank_->Evaluate(settings_.eval_batches));
  eval_loss_ = record.eval_loss;
  evaluated_ = rank_->steps();
  results_.LeaveOut(MonotonicNanos() - begin);
  return absl::OkStatus();
}

// Prints `line` on rank 0.
void Worker::Say(std::string_view line) {
  if (!is_first() || sinks_.table == nullptr || settings_.quiet) return;
  if (outputs_ != nullptr) outputs_->EndLine();
  *sinks_.table << "train: " << line << std::endl;
}

// Excludes memory before the next step from its peak.
void Worker::RestartWatch() {
  if (!watch_) return;
  peak_ = std::max(peak_, ReadResidentMemory().peak_resident);
  watch_->Restart();
}

// Compares the sum over all ranks, which are on one machine, with
// --memory_limit.
absl::Status Worker::WatchMemory() {
  if (!watch_) return absl::OkStatus();
  const MemoryWatch::Usage own = watch_->AfterStep();
  if (own.notice) Say(absl::StrCat("memory: rank 0 ", *own.notice));
  int64_t used = own.used;
  TESSERA_RETURN_IF_ERROR(
      world_.AllReduce(collectives::Buffer(std::span(&used, 1)),
                       shares_process() ? collectives::Reduction::Max()
                                        : collectives::Reduction::Sum()),
      Annotate(_, "exchanging the ranks' memory"));
  // Another thread may have reset the peak before this thread read it.
  if (shares_process()) peak_ = std::max(peak_, used);
  const bool is_over = ExceedsMemoryLimit(used, memory_limit_);
  if (!is_over || !changes_strategy_ || rank_->steps() == settings_.steps) {
    return absl::OkStatus();
  }
  return ChangeStrategy(used);
}

absl::Status Worker::ChangeStrategy(int64_t used) {
  const int64_t begin = MonotonicNanos();
  const std::string why = absl::StrFormat(
      "memory: after %d steps: %.1fMiB of --memory_limit=%s: ", rank_->steps(),
      static_cast<double>(used) / (1 << 20),
      settings_.parallel.memory_limit.ToString());
  // An error of the previous checkpoint fails the run, as it would without a
  // change.
  if (checkpoints_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(checkpoints_->Wait().status());
  }
  const absl::StatusOr<MemoryRung> rung = NextRung(used);
  if (rung.ok() && rung->flags.empty()) {
    changes_strategy_ = false;
    Say(absl::StrCat(why, "no strategy needs less memory; continues"));
    return absl::OkStatus();
  }
  std::unique_ptr<CommonDirectory> scratch;
  const absl::StatusOr<std::string> saved = SaveFor(rung, scratch);
  TESSERA_RETURN_IF_ERROR(world_.status());
  if (!saved.ok()) {
    changes_strategy_ = false;
    Say(absl::StrCat(why, "continues, since its strategy cannot be changed: ",
                     saved.status().message()));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(
      GoOnWith(rung->settings, *saved),
      Annotate(_, absl::StrCat(why, "from ", *saved, " with ", rung->flags)));
  if (checkpoints_ != nullptr) NoteCheckpoint(*saved);
  strategy_ = std::max(strategy_, rung->strategy);
  const std::string name(topology::EnumName(strategy_));
  strategy_changes_.push_back({rank_->steps(), used, name, rung->flags});
  if (trace_ != nullptr) {
    trace_->AddCheckpoint("strategy", {begin, MonotonicNanos()});
  }
  Say(absl::StrCat(why, "strategy ", name, ": ", rung->flags));
  return absl::OkStatus();
}

// Returns the rung that rank 0 chooses, since predictions differ slightly
// between ranks. Only differences of predictions matter; the actual memory is
// `used`.
absl::StatusOr<MemoryRung> Worker::NextRung(int64_t used) const {
  const auto predict =
      [&](const Settings& settings) -> absl::StatusOr<int64_t> {
    TESSERA_ASSIGN_OR_RETURN(
        const RunPrediction prediction,
        MakePrediction(settings, model_, {.room = MachineRoom()}));
    return prediction.needed;
  };
  const auto is_enough = [&](const MemoryRung& rung) {
    return FitsMemoryLimit(used - (rung.as_given - rung.needed), memory_limit_);
  };
  absl::StatusOr<MemoryRung> rung = MemoryRung{.settings = settings_};
  if (is_first()) {
    rung = ClimbMemoryLadder(settings_, LadderUse::kWhileRunning,
                             ScratchOf(settings_), predict, is_enough);
  }
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world_, rung.status(), kPatience));
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(rung->flags));
  std::string strategy(topology::EnumName(rung->strategy));
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(strategy));
  TESSERA_ASSIGN_OR_RETURN(
      rung->strategy, topology::ParseEnum<topology::MemoryStrategy>(strategy));
  TESSERA_ASSIGN_OR_RETURN(std::string settings,
                           FormatSettings(rung->settings));
  TESSERA_RETURN_IF_ERROR(TakeFromFirst(settings));
  TESSERA_ASSIGN_OR_RETURN(rung->settings, ParseSettings(settings));
  return rung;
}

// A collective. Replaces `text` by rank 0's.
absl::Status Worker::TakeFromFirst(std::string& text) const {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           collectives::ExchangeTexts(world_, text, kPatience));
  text = texts[0];
  return absl::OkStatus();
}

// Writes a checkpoint of the current state, without a copy, after every rank
// has verified that it can create the tiers of the rung. Returns its path,
// which is in `scratch` if the run keeps no checkpoints. Errors leave the run
// unchanged.
absl::StatusOr<std::string> Worker::SaveFor(
    const absl::StatusOr<MemoryRung>& rung,
    std::unique_ptr<CommonDirectory>& scratch) {
  absl::Status ready = rung.status();
  std::unique_ptr<OffloadTiers> tried;
  if (ready.ok()) {
    auto tiers = OffloadTiers::Create(rung->settings, meter_->tiers());
    ready = tiers.status();
    if (ready.ok()) tried = *std::move(tiers);
  }
  TESSERA_RETURN_IF_ERROR(collectives::AgreeOnStatus(world_, ready, kPatience));
  // Removes the directories that it created, after all ranks have tried.
  tried.reset();
  if (checkpoints_ != nullptr) return checkpoints_->Save(EvalLossNow());
  TESSERA_ASSIGN_OR_RETURN(scratch, CommonDirectory::Create(world_));
  TESSERA_ASSIGN_OR_RETURN(
      const auto checkpoints,
      RunCheckpoints::Create(
          *rank_, {.directory = scratch->path(),
                   .identity = IdentityOf(settings_, model_, data_)}));
  return checkpoints->Save();
}

absl::Status Worker::GoOnWith(const Settings& next,
                              const std::string& checkpoint) {
  results_.AddRank(*rank_, *tiers_);
  checkpoints_.reset();
  rank_.reset();
  tiers_.reset();
  offload::ReturnFreeMemory();
  // The new tiers may use the directory of the old tiers.
  TESSERA_RETURN_IF_ERROR(world_.Barrier());
  settings_ = next;
  TESSERA_RETURN_IF_ERROR(MakeRank());
  TESSERA_RETURN_IF_ERROR(
      RestoreRun(checkpoint, IdentityOf(settings_, model_, data_), *rank_));
  TESSERA_RETURN_IF_ERROR(MakeCheckpoints());
  if (checkpoints_ != nullptr) checkpointed_ = rank_->steps();
  TESSERA_RETURN_IF_ERROR(world_.Barrier());
  offload::ReturnFreeMemory();
  RestartWatch();
  return absl::OkStatus();
}

// The validation loss of the current state.
std::optional<double> Worker::EvalLossNow() const {
  return evaluated_ == rank_->steps() ? eval_loss_ : std::nullopt;
}

// SaveLast writes the checkpoint of the last step.
absl::Status Worker::CheckpointIfDue() {
  const int64_t every = settings_.checkpoint_every;
  const bool is_regular = every > 0 && rank_->steps() % every == 0;
  const std::optional<double> loss = EvalLossNow();
  const bool is_best = settings_.keep_best && loss && *loss < best_loss_;
  if (checkpoints_ == nullptr || !(is_regular || is_best) ||
      rank_->steps() == settings_.steps || rank_->steps() == checkpointed_) {
    return absl::OkStatus();
  }
  if (is_best) best_loss_ = *loss;
  return StartCheckpoint();
}

absl::Status Worker::StartCheckpoint() {
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(checkpoints_->Start(EvalLossNow()));
  NoteCheckpoint(absl::StrCat(Checkpoints(), "/",
                              zero3::CheckpointName(rank_->state().steps())));
  if (trace_ != nullptr)
    trace_->AddCheckpoint("copy", {begin, MonotonicNanos()});
  return absl::OkStatus();
}

// Training has ended, so the state is written without a copy.
absl::Status Worker::SaveLast() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(checkpointed_ == rank_->steps()
                              ? checkpoints_->Wait().status()
                              : checkpoints_->Save(EvalLossNow()).status());
  if (trace_ != nullptr) {
    trace_->AddCheckpoint("write", {begin, MonotonicNanos()});
  }
  return absl::OkStatus();
}

absl::Status Worker::Finish() {
  TESSERA_RETURN_IF_ERROR(SaveLast());
  if (outputs_ != nullptr) TESSERA_RETURN_IF_ERROR(outputs_->Finish());
  return trace_ == nullptr ? absl::OkStatus() : trace_->Write();
}

}  // namespace

absl::StatusOr<RunResult> RunWorker(collectives::Communicator& world,
                                    const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const TrainingData& data,
                                    const WorkerSinks& sinks) {
  if (data.tokenizer == nullptr || !data.samples) {
    return absl::InvalidArgumentError(
        "the training data has no tokenizer or samples; use "
        "OpenTrainingData");
  }
  return Worker(world, settings, model, data, sinks).Run();
}

}  // namespace tessera::train
