#include "tools/train/loop/worker.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "offload/pressure/pressure_gauge.h"
#include "tools/train/checkpoint/imported_weights.h"
#include "tools/train/checkpoint/memory_copies.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/checkpoint_history.h"
#include "tools/train/loop/loss_guard.h"
#include "tools/train/loop/memory_strategy.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/rank_setup.h"
#include "tools/train/loop/reference_file.h"
#include "tools/train/loop/result_gatherer.h"
#include "tools/train/loop/snapshot_pace.h"
#include "tools/train/report/run_trace.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/step_meter.h"
#include "tools/train/report/step_outputs.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/watch/live_place.h"
#include "zero3/checkpoint/checkpoint_directory.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

// The metadata of copies in memory with the choice of --snapshot_every=auto.
constexpr std::string_view kChoiceKey = "snapshot_choice";

// The mean time between failures of any rank.
double SecondsBetweenFailures(const Settings& settings) {
  const auto of_rank = ParseTimeSpan(settings.mtbf);
  return absl::ToDoubleSeconds(of_rank.value_or(absl::InfiniteDuration())) /
         static_cast<double>(settings.parallel.mesh.world_size());
}

class Worker {
 public:
  Worker(collectives::Communicator& world, const Settings& settings,
         const model_files::ModelConfig& model, const TrainingData& data,
         const WorkerSinks& sinks)
      : run_{world, settings, model, data, sinks},
        memory_before_(ReadResidentMemory().resident),
        checkpoints_(run_),
        guard_(run_),
        memory_(run_),
        results_(world),
        pace_(settings.snapshot_every, SecondsBetweenFailures(settings)) {}
  ~Worker() {
    if (run_.sinks.copies != nullptr) run_.sinks.copies->Leave();
  }

  // Aborts the world on failure.
  absl::StatusOr<RunResult> Run();

 private:
  TrainRank& rank() { return setup_->rank(); }
  bool MustStop() const { return results_.stop() != StopCause::kNone; }

  absl::StatusOr<RunResult> RunOrFail();
  absl::Status SetUp();
  absl::Status CreateRank();
  absl::Status SetReferences();
  absl::StatusOr<bool> JoinCopies();
  absl::Status RestoreOrResume();
  absl::Status ResumeWithoutCopies();
  absl::Status ContinuePace(const zero3::CheckpointMetadata& metadata);
  absl::Status TakeCopies();
  absl::Status TakeStep();
  absl::StatusOr<bool> RollBack(const StepRecord& record,
                                const StepVerdict& verdict);
  absl::Status GoBackTo(const SavedStep& saved, Rollback& rollback);
  absl::Status Report(StepRecord record);
  void CompareGracePeriod(absl::Duration step);
  absl::Status Evaluate(StepRecord& record);
  absl::Status ChangeStrategy(int64_t used);
  absl::Status GoOnWith(const Settings& next, const std::string& checkpoint);
  absl::StatusOr<RunResult> Finish();
  absl::Status SaveLast();

  RunContext run_;
  const int64_t memory_before_;
  // Members refer to earlier ones.
  std::unique_ptr<RankSetup> setup_;
  CheckpointHistory checkpoints_;
  LossGuard guard_;
  MemoryStrategy memory_;
  ResultGatherer results_;
  SnapshotPace pace_;
  bool has_compared_ = false;        // The grace period was too short.
  bool has_copies_ = false;          // Of the state, from an earlier world.
  std::optional<double> eval_loss_;  // The validation loss of the state.
  std::vector<double> references_;   // With --objective=dpo.
};

absl::StatusOr<RunResult> Worker::Run() {
  absl::StatusOr<RunResult> result = RunOrFail();
  if (result.ok()) return result;
  const absl::Status error = Annotate(
      result.status(), absl::StrCat("rank ", run_.world.rank().value()));
  if (run_.sinks.collectives != nullptr) {
    run_.sinks.collectives->AbortAll(absl::AbortedError(error.message()));
  }
  run_.world.Abort(error.message());
  return error;
}

absl::StatusOr<RunResult> Worker::RunOrFail() {
  TESSERA_RETURN_IF_ERROR(SetUp());
  if (run_.sinks.preemption != nullptr) run_.sinks.preemption->Begin();
  while (rank().steps() < run_.settings.steps && !MustStop()) {
    TESSERA_RETURN_IF_ERROR(TakeStep());
  }
  return Finish();
}

// A checkpoint, or the copies of an earlier world, replaces the weights of
// --init_from, which then are not read.
absl::Status Worker::CreateRank() {
  const ActionScope place(RankAction::kCreateModel);
  const std::string& model = run_.settings.init_from;
  if (!model.empty() && run_.settings.resume.empty() && !has_copies_) {
    absl::StatusOr<ImportedWeights> weights = ImportedWeights::Open(model);
    TESSERA_RETURN_IF_ERROR(run_.Agree(weights.status()),
                            Annotate(_, absl::StrCat("--init_from=", model)));
    run_.first_weights =
        std::make_shared<const ImportedWeights>(*std::move(weights));
  }
  TESSERA_ASSIGN_OR_RETURN(setup_, RankSetup::Create(run_));
  run_.first_weights.reset();
  return absl::OkStatus();
}

// Compares the copies of all ranks in a new world.
absl::StatusOr<bool> Worker::JoinCopies() {
  // The exchange of copies is background work.
  if (run_.sinks.collectives != nullptr) run_.sinks.collectives->SetOn(false);
  const auto found = run_.sinks.copies->Join(run_.world, run_.sinks.locations);
  if (run_.sinks.collectives != nullptr) run_.sinks.collectives->SetOn(true);
  return found;
}

absl::Status Worker::RestoreOrResume() {
  const ActionScope place(RankAction::kRestore);
  if (run_.sinks.copies == nullptr) return checkpoints_.Resume(rank());
  TESSERA_ASSIGN_OR_RETURN(const auto metadata,
                           run_.sinks.copies->Restore(rank()));
  if (!metadata.has_value()) {
    TESSERA_RETURN_IF_ERROR(ResumeWithoutCopies());
    return TakeCopies();
  }
  TESSERA_ASSIGN_OR_RETURN(const RunIdentity saved, IdentityFrom(*metadata));
  if (!saved.source.config.empty()) run_.source = saved.source;
  TESSERA_RETURN_IF_ERROR(ContinuePace(*metadata));
  run_.Say(absl::StrCat("continues after step ", rank().steps(),
                        " from copies in memory"));
  return TakeCopies();
}

// If a rank was lost together with the copies of its state, the run continues
// from its last checkpoint, or else from where it began.
absl::Status Worker::ResumeWithoutCopies() {
  if (run_.sinks.copies->were_taken() && !run_.settings.run_dir.empty()) {
    std::string path;
    if (run_.is_first()) {
      const auto latest =
          zero3::LatestCheckpoint(run_.settings.run_dir + "/checkpoints");
      if (latest.ok()) path = latest->path;
    }
    TESSERA_ASSIGN_OR_RETURN(path, run_.FromFirst(path));
    run_.Say(absl::StrCat("copies in memory were lost; continues from ",
                          path.empty() ? "the beginning" : path));
    if (!path.empty()) run_.settings.resume = path;
  }
  return checkpoints_.Resume(rank());
}

// A replaced rank gets the choice of the others with the copy of its state.
absl::Status Worker::ContinuePace(const zero3::CheckpointMetadata& metadata) {
  const auto found = metadata.find(std::string(kChoiceKey));
  if (found == metadata.end()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const SnapshotChoice choice,
                           ParseChoice(found->second));
  pace_.Continue(choice);
  return absl::OkStatus();
}

absl::Status Worker::TakeCopies() {
  const ActionScope place(RankAction::kCopyState);
  zero3::CheckpointMetadata metadata;
  TESSERA_RETURN_IF_ERROR(AddTo(run_.identity(), metadata));
  if (pace_.choice().has_value()) {
    metadata[std::string(kChoiceKey)] = FormatChoice(*pace_.choice());
  }
  pace_.AddCopy();
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(run_.sinks.copies->Take(rank(), metadata),
                          Annotate(_, "--snapshot_every"));
  run_.Trace("copy", begin);
  return absl::OkStatus();
}

absl::Status Worker::SetUp() {
  // The peak excludes reading the text and measuring collectives.
  offload::ReturnFreeMemory();
  RestartPeakMemory();
  if (run_.sinks.copies != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(has_copies_, JoinCopies());
  }
  TESSERA_RETURN_IF_ERROR(CreateRank());
  const Settings& settings = run_.settings;
  if (!settings.trace.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        run_.trace, RunTrace::Create(run_.world, settings.trace, setup_->name(),
                                     setup_->clock_offset()));
  }
  TESSERA_RETURN_IF_ERROR(RestoreOrResume());
  TESSERA_RETURN_IF_ERROR(SetReferences());
  TESSERA_RETURN_IF_ERROR(checkpoints_.WriteFrom(rank()));
  if (run_.is_first()) {
    const ActionScope place(RankAction::kReport);
    TESSERA_ASSIGN_OR_RETURN(
        run_.outputs,
        StepOutputs::Open({.settings = settings,
                           .first_step = rank().steps(),
                           .ranks = run_.world.size(),
                           .run = &rank().options(),
                           .table = run_.sinks.table,
                           .is_terminal = run_.sinks.is_terminal}));
  }
  results_.Begin(rank().steps(), rank().options().mesh);
  memory_.Restart();
  return absl::OkStatus();
}

// The reference is the model before the first step: a run that resumes later
// reads what rank 0 then wrote, in its own directory or in that of the
// checkpoint.
absl::Status Worker::SetReferences() {
  if (run_.settings.objective != "dpo") return absl::OkStatus();
  if (!references_.empty()) return rank().SetReferences(references_);
  const std::string& directory = run_.settings.run_dir;
  const std::string path = absl::StrCat(directory, "/", kReferenceFile);
  absl::Status status;
  if (rank().steps() == 0) {
    TESSERA_RETURN_IF_ERROR(rank().ComputeReferences());
  } else {
    std::vector<double> read(run_.data.samples->samples());
    if (run_.is_first()) {
      const std::string beside =
          absl::StrCat(checkpoints_.resumed_from(), "/../../", kReferenceFile);
      absl::StatusOr<std::vector<double>> found =
          ReadReferences(PathExists(path) ? path : beside, run_.identity());
      status = found.status();
      if (status.ok()) status = rank().SetReferences(*found);
      if (status.ok()) read = *std::move(found);
    }
    TESSERA_RETURN_IF_ERROR(run_.Agree(status));
    // All other ranks add zeros.
    TESSERA_RETURN_IF_ERROR(run_.world.host().AllReduce(
        collectives::Buffer(std::span(read)), collectives::Reduction::Sum()));
    TESSERA_RETURN_IF_ERROR(rank().SetReferences(std::move(read)));
  }
  references_ = rank().references();
  if (run_.is_first() && !directory.empty()) {
    status = WriteReferences(path, run_.identity(), references_);
  }
  return run_.Agree(status);
}

absl::Status Worker::TakeStep() {
  EnterStep(rank().steps());
  const ActionScope place(RankAction::kStep);
  if (run_.sinks.before_step) {
    TESSERA_RETURN_IF_ERROR(run_.sinks.before_step(rank().steps()));
  }
  TESSERA_RETURN_IF_ERROR(setup_->meter().Begin(rank()));
  const std::vector<double> losses_before = rank().progress().losses;
  TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank().Step());
  TESSERA_ASSIGN_OR_RETURN(const StepVerdict verdict,
                           guard_.Judge(losses_before, record, rank()));
  TESSERA_ASSIGN_OR_RETURN(const bool went_back, RollBack(record, verdict));
  if (!went_back) {
    if (!verdict.non_finite.empty()) {
      return absl::OutOfRangeError(verdict.non_finite);
    }
    TESSERA_RETURN_IF_ERROR(Report(record));
    TESSERA_ASSIGN_OR_RETURN(const int64_t excessive,
                             memory_.AfterStep(setup_->tiers()));
    if (excessive > 0 && rank().steps() < run_.settings.steps && !MustStop()) {
      TESSERA_RETURN_IF_ERROR(ChangeStrategy(excessive));
    }
    TESSERA_RETURN_IF_ERROR(checkpoints_.SaveIfDue(eval_loss_));
    if (run_.sinks.copies != nullptr && pace_.IsDue(rank().steps()) &&
        rank().steps() < run_.settings.steps && !MustStop()) {
      TESSERA_RETURN_IF_ERROR(TakeCopies());
    }
  }
  if (run_.sinks.on_step) run_.sinks.on_step();
  return absl::OkStatus();
}

// Validates if that is due, and measures and publishes the step.
absl::Status Worker::Report(StepRecord record) {
  const ActionScope place(RankAction::kReport);
  TESSERA_ASSIGN_OR_RETURN(const StepActivity activity,
                           setup_->meter().End(rank()));
  TESSERA_RETURN_IF_ERROR(Evaluate(record));
  const StepAccount account = AccountOf(activity);
  if (run_.trace != nullptr) run_.trace->Add(activity, account);
  const Preemption* const preemption = run_.sinks.preemption;
  MemoryCopies* const copies = run_.sinks.copies;
  if (copies != nullptr) TESSERA_RETURN_IF_ERROR(copies->Finish());
  TESSERA_ASSIGN_OR_RETURN(
      const StepMetrics step,
      results_.AddStep(
          record, account,
          preemption == nullptr ? StopCause::kNone : preemption->cause()));
  // All ranks have exchanged measurements, and before that finished.
  if (copies != nullptr) {
    copies->Commit();
    // The time is rank 0's on all ranks.
    if (const auto choice = pace_.AddStep(step.seconds)) {
      run_.Say(absl::StrCat("copies in memory ", DescribeChoice(*choice)));
    }
  }
  CompareGracePeriod(absl::Seconds(step.seconds));
  for (const Straggler& one : step.slowest) {
    if (!one.is_new) continue;
    run_.Say(absl::StrFormat("rank %d is %.1f x slower in %s", one.rank,
                             one.ratio, SectionName(one.section)));
  }
  return run_.outputs == nullptr ? absl::OkStatus() : run_.outputs->Add(step);
}

// Says once if the run could not end in time after a signal.
void Worker::CompareGracePeriod(absl::Duration step) {
  const absl::Duration write = checkpoints_.write_time();
  const absl::StatusOr<absl::Duration> grace =
      ParseTimeSpan(run_.settings.grace_period);
  if (has_compared_ || write == absl::ZeroDuration() || !grace.ok()) return;
  has_compared_ = write + step > *grace;
  if (!has_compared_) return;
  run_.Say(absl::StrFormat(
      "a checkpoint takes %.1f s and a step %.1f s, longer than "
      "--grace_period=%s; the steps after the last checkpoint would be lost "
      "when the run is preempted",
      absl::ToDoubleSeconds(write), absl::ToDoubleSeconds(step),
      run_.settings.grace_period));
}

absl::Status Worker::Evaluate(StepRecord& record) {
  const Settings& settings = run_.settings;
  const bool is_last = rank().steps() == settings.steps;
  const int64_t every = settings.eval_every;
  const int64_t begin = MonotonicNanos();
  if (every > 0 && (rank().steps() % every == 0 || is_last)) {
    TESSERA_RETURN_IF_ERROR(
        setup_->meter().LeaveOut(rank(), [&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(record.eval_loss,
                                   rank().Evaluate(settings.eval_batches));
          return absl::OkStatus();
        }));
  }
  eval_loss_ = record.eval_loss;
  if (settings.test_fraction > 0 && is_last) {
    TESSERA_RETURN_IF_ERROR(
        setup_->meter().LeaveOut(rank(), [&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              record.test_loss,
              rank().Evaluate(run_.data.samples->test_count() / settings.batch,
                              text::SampleUse::kTest));
          return absl::OkStatus();
        }));
  }
  results_.LeaveOut(MonotonicNanos() - begin);
  return absl::OkStatus();
}

// Returns whether the run has returned to an earlier checkpoint. All ranks see
// the same losses and make the same decision. Without a checkpoint from before
// the spike the run continues, unless numbers are infinite or NaN.
absl::StatusOr<bool> Worker::RollBack(const StepRecord& record,
                                      const StepVerdict& verdict) {
  const std::string& why = verdict.rollback;
  if (why.empty()) return false;
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedStep> saved,
                           checkpoints_.LastBy(verdict.steps_before_rise));
  if (!saved) {
    run_.Say(absl::StrCat(why,
                          "; no checkpoint precedes it, see --checkpoint_every"
                          " and --keep_checkpoints"));
    return false;
  }
  const int64_t most = run_.settings.max_rollbacks;
  if (record.rollbacks >= most) {
    return absl::OutOfRangeError(absl::StrCat(
        why, "; the run has gone back ", record.rollbacks,
        " times, and --max_rollbacks=", most,
        ". Lower --learning_rate, look at the data, or raise --max_rollbacks "
        "or --spike_factor and resume"));
  }
  Rollback rollback = {
      .step = record.step, .loss = record.loss, .usual = verdict.usual};
  TESSERA_RETURN_IF_ERROR(GoBackTo(*saved, rollback), Annotate(_, why));
  run_.Say(absl::StrCat(why, ": rollback ", record.rollbacks + 1, " of ", most,
                        " to step ", rollback.to_step, ", ", saved->path,
                        "; leaves out ", rollback.skipped_samples, " samples"));
  return true;
}

// Restores the checkpoint into a new rank. If it were restored in place,
// publications of the last step might still read memory that is overwritten.
absl::Status Worker::GoBackTo(const SavedStep& saved, Rollback& rollback) {
  const int64_t begin = MonotonicNanos();
  const int64_t next_sample = rank().FirstSampleOf(rank().steps());
  const RunProgress before = rank().progress();
  TESSERA_RETURN_IF_ERROR(checkpoints_.RemoveAfter(saved));
  TESSERA_RETURN_IF_ERROR(GoOnWith(run_.settings, saved.path));
  RunProgress progress = rank().progress();
  rollback.to_step = progress.steps;
  progress.rollbacks = before.rollbacks + 1;
  progress.skipped_samples +=
      next_sample - rank().FirstSampleOf(progress.steps);
  rollback.skipped_samples = progress.skipped_samples - before.skipped_samples;
  rank().SetProgress(std::move(progress));
  eval_loss_.reset();
  guard_.Restart();
  run_.Trace("rollback", begin);
  results_.GoBack(rollback);
  return run_.outputs == nullptr ? absl::OkStatus()
                                 : run_.outputs->GoBackTo(rank().steps());
}

// Climbs the memory ladder, if a rung and a checkpoint are possible.
absl::Status Worker::ChangeStrategy(int64_t used) {
  const int64_t begin = MonotonicNanos();
  const std::string why = absl::StrFormat(
      "memory: after %d steps: %.1fMiB of --memory_limit=%s: ", rank().steps(),
      static_cast<double>(used) / (1 << 20),
      run_.settings.parallel.memory_limit.ToString());
  // An error of the previous checkpoint fails the run, as it would without a
  // change.
  TESSERA_RETURN_IF_ERROR(checkpoints_.Wait());
  const absl::StatusOr<MemoryRung> rung = memory_.NextRung(used);
  if (rung.ok() && rung->flags.empty()) {
    memory_.GiveUp();
    run_.Say(absl::StrCat(why, "no strategy needs less memory; continues"));
    return absl::OkStatus();
  }
  const absl::StatusOr<StrategyCheckpoint> saved =
      memory_.SaveFor(rung, *setup_, checkpoints_, eval_loss_);
  TESSERA_RETURN_IF_ERROR(run_.world.status());
  if (!saved.ok()) {
    memory_.GiveUp();
    run_.Say(absl::StrCat(why,
                          "continues, since its strategy cannot be changed: ",
                          saved.status().message()));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(GoOnWith(rung->settings, saved->path),
                          Annotate(_, absl::StrCat(why, "from ", saved->path,
                                                   " with ", rung->flags)));
  if (checkpoints_.writes()) checkpoints_.Note(rank(), saved->path);
  const StrategyChange& change =
      memory_.NoteChange(*rung, rank().steps(), used);
  run_.Trace("strategy", begin);
  run_.Say(absl::StrCat(why, "strategy ", change.strategy, ": ", change.flags));
  return absl::OkStatus();
}

// Replaces the rank by one with the settings `next`, from the checkpoint.
absl::Status Worker::GoOnWith(const Settings& next,
                              const std::string& checkpoint) {
  const ActionScope place(RankAction::kRestore);
  results_.AddRank(rank(), setup_->tiers());
  checkpoints_.Release();
  setup_->Release();
  offload::ReturnFreeMemory();
  // The new tiers may use the directory of the old tiers.
  TESSERA_RETURN_IF_ERROR(run_.world.Barrier());
  run_.settings = next;
  TESSERA_RETURN_IF_ERROR(setup_->Make(run_));
  TESSERA_RETURN_IF_ERROR(RestoreRun(checkpoint, run_.identity(), rank()));
  TESSERA_RETURN_IF_ERROR(SetReferences());
  TESSERA_RETURN_IF_ERROR(checkpoints_.WriteFrom(rank()));
  TESSERA_RETURN_IF_ERROR(run_.world.Barrier());
  offload::ReturnFreeMemory();
  memory_.Restart();
  return absl::OkStatus();
}

absl::Status Worker::SaveLast() {
  const ActionScope place(RankAction::kCheckpoint);
  const int64_t steps = rank().steps();
  const bool is_early = steps < run_.settings.steps;
  if (is_early) {
    const bool is_new_host = results_.stop() == StopCause::kNewHost;
    run_.Say(absl::StrCat(
        is_new_host ? "a new host joins" : "preempted", ": ends after step ",
        steps, " of ", run_.settings.steps,
        checkpoints_.writes() ? " with a checkpoint"
                              : "; without a run directory all are lost"));
  }
  TESSERA_RETURN_IF_ERROR(checkpoints_.SaveLast(eval_loss_));
  if (is_early) run_.sinks.preemption->NoteStop(results_.stop());
  return absl::OkStatus();
}

absl::StatusOr<RunResult> Worker::Finish() {
  const ActionScope place(RankAction::kFinish);
  TESSERA_RETURN_IF_ERROR(SaveLast());
  TESSERA_RETURN_IF_ERROR(rank().model().AwaitGathers());
  const MeasuredMessages messages = setup_->meter().Messages(rank());
  if (run_.outputs != nullptr) TESSERA_RETURN_IF_ERROR(run_.outputs->Finish());
  if (run_.trace != nullptr) TESSERA_RETURN_IF_ERROR(run_.trace->Write());
  results_.AddRank(rank(), setup_->tiers());
  TESSERA_ASSIGN_OR_RETURN(RunResult result,
                           results_.Result(memory_before_, memory_.peak(),
                                           checkpoints_.last_path(), messages));
  result.strategy_changes = memory_.changes();
  if (pace_.choice().has_value()) {
    result.snapshot_choices.push_back(*pace_.choice());
  }
  return result;
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
