#include "tools/train/worker/worker.h"

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "tensor_parallel/ops/cpu/cpu_ops.h"
#include "tools/train/checkpoint/restore_run.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/metrics/live_table.h"
#include "tools/train/metrics/metrics_file.h"
#include "tools/train/run/train_rank.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/user_path.h"
#include "tools/train/trace/run_trace.h"
#include "tools/train/worker/measure/clock_offset.h"
#include "tools/train/worker/measure/step_activity.h"
#include "tools/train/worker/measure/step_meter.h"
#include "tools/train/worker/memory/memory_watch.h"
#include "tools/train/worker/memory/offload_tiers.h"
#include "tools/train/worker/memory/process_memory.h"
#include "tools/train/worker/result_gatherer.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

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
        memory_before_(ReadProcessMemory().resident),
        ops_({.threads = static_cast<int>(settings.threads)}),
        results_(world) {}

  // Where it fails it ends the world, before anything waits for it.
  absl::StatusOr<RunResult> Run();

 private:
  bool is_first() const { return world_.rank() == collectives::Rank(0); }
  RunIdentity Identity() const;
  std::string RankName() const;

  absl::StatusOr<RunResult> RunOrFail();
  absl::Status MakeRank();
  absl::Status Restore();
  absl::Status MakeCheckpoints();
  absl::Status OpenOutputs();
  absl::Status TakeStep();
  absl::Status Report(const StepRecord& record);
  void WatchMemory();
  absl::Status CheckpointIfDue();
  absl::Status StartCheckpoint();
  absl::Status SaveLast();
  absl::Status Finish();

  collectives::Communicator& world_;
  const Settings& settings_;
  const model_files::ModelConfig& model_;
  const TrainingData& data_;
  const WorkerSinks& sinks_;
  const int64_t memory_before_;

  // What comes later refers to what is before it.
  tensor_parallel::CpuOps ops_;
  std::optional<StepMeter> meter_;
  std::unique_ptr<OffloadTiers> tiers_;
  std::unique_ptr<TrainRank> rank_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<LiveTable> table_;
  std::optional<MemoryWatch> watch_;
  ResultGatherer results_;
  int64_t checkpointed_ = -1;  // Steps of the last checkpoint.
};

RunIdentity Worker::Identity() const {
  return {.model = model_,
          .seed = static_cast<uint64_t>(settings_.seed),
          .batch = settings_.batch,
          .length = settings_.length,
          .corpus = data_.corpus->fingerprint(),
          .vocabulary = data_.tokenizer->vocabulary_size()};
}

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
  // Not of reading the text and measuring what collectives cost.
  RestartPeakMemory();
  TESSERA_RETURN_IF_ERROR(MakeRank());
  TESSERA_RETURN_IF_ERROR(Restore());
  TESSERA_RETURN_IF_ERROR(MakeCheckpoints());
  TESSERA_RETURN_IF_ERROR(OpenOutputs());
  results_.Begin(rank_->steps());
  while (rank_->steps() < settings_.steps) {
    TESSERA_RETURN_IF_ERROR(TakeStep());
  }
  TESSERA_RETURN_IF_ERROR(Finish());
  return results_.Result(
      *rank_, *tiers_, memory_before_,
      checkpoints_ == nullptr ? "" : checkpoints_->last_path());
}

absl::Status Worker::MakeRank() {
  TESSERA_ASSIGN_OR_RETURN(const int64_t offset, ClockOffset(world_));
  meter_.emplace(ops_, sinks_.collectives, offset);
  TESSERA_ASSIGN_OR_RETURN(RunOptions options,
                           RunOptionsFrom(settings_, model_));
  TESSERA_ASSIGN_OR_RETURN(tiers_,
                           OffloadTiers::Create(settings_, meter_->tiers()));
  tiers_->AddTo(options.state);
  if (settings_.parallel.memory_limit != ByteSize()) {
    const ByteSize limit = settings_.parallel.memory_limit;
    // Threads share the memory of their process.
    const int64_t processes =
        world_.engine_name() == "in_process" ? 1 : world_.size();
    watch_.emplace(limit.bytes() / processes);
  }
  TESSERA_ASSIGN_OR_RETURN(
      rank_, TrainRank::Create(world_, options, *data_.samples, meter_->ops()));
  if (settings_.trace.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      trace_,
      RunTrace::Create(world_, UserPath(settings_.trace), RankName(), offset));
  return absl::OkStatus();
}

absl::Status Worker::Restore() {
  if (settings_.resume.empty()) return absl::OkStatus();
  const std::string path = settings_.resume == "latest"
                               ? UserPath(settings_.run_dir) + "/checkpoints"
                               : UserPath(settings_.resume);
  TESSERA_RETURN_IF_ERROR(
      RestoreRun(path, Identity(), *rank_),
      Annotate(_, absl::StrCat("--resume=", settings_.resume)));
  checkpointed_ = rank_->steps();
  return absl::OkStatus();
}

absl::Status Worker::MakeCheckpoints() {
  if (settings_.run_dir.empty()) return absl::OkStatus();
  // They are written in the background, and what that waits for is not waited
  // for by the rank.
  if (sinks_.collectives != nullptr) sinks_.collectives->SetOn(false);
  absl::StatusOr<std::unique_ptr<RunCheckpoints>> checkpoints =
      RunCheckpoints::Create(
          *rank_, {.directory = UserPath(settings_.run_dir) + "/checkpoints",
                   .keep = settings_.keep_checkpoints,
                   .identity = Identity()});
  if (sinks_.collectives != nullptr) sinks_.collectives->SetOn(true);
  TESSERA_ASSIGN_OR_RETURN(checkpoints_, std::move(checkpoints));
  return absl::OkStatus();
}

absl::Status Worker::OpenOutputs() {
  if (!is_first()) return absl::OkStatus();
  if (!settings_.metrics.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        metrics_,
        MetricsFile::Open(UserPath(settings_.metrics), rank_->steps()));
  }
  if (sinks_.table != nullptr && !settings_.quiet) {
    table_.emplace(*sinks_.table,
                   LiveTableOptions{.is_terminal = sinks_.is_terminal,
                                    .steps = settings_.steps});
  }
  return absl::OkStatus();
}

// Steps count from 0 there, as in metrics.
absl::Status CheckFinite(const StepRecord& record, bool scales) {
  const bool is_bad = record.skipped && !scales;
  if (std::isfinite(record.loss) && !is_bad) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "step ", record.step, " (from 0): the loss is ", record.loss,
      ", the gradient norm ", record.gradient_norm, ", at learning rate ",
      record.learning_rate, " and loss scale ", record.loss_scale,
      "; both must be finite. Lower --learning_rate, raise --warmup_steps, set "
      "--clip_norm, or take --dtype=fp32"));
}

absl::Status Worker::TakeStep() {
  if (sinks_.before_step) {
    TESSERA_RETURN_IF_ERROR(sinks_.before_step(rank_->steps()));
  }
  meter_->Begin();
  TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank_->Step());
  TESSERA_RETURN_IF_ERROR(
      CheckFinite(record, rank_->options().state.loss_scale.dynamic));
  TESSERA_RETURN_IF_ERROR(Report(record));
  WatchMemory();
  TESSERA_RETURN_IF_ERROR(CheckpointIfDue());
  if (sinks_.on_step) sinks_.on_step();
  return absl::OkStatus();
}

absl::Status Worker::Report(const StepRecord& record) {
  TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter_->End(*rank_));
  const StepAccount account = AccountOf(activity);
  if (trace_ != nullptr) trace_->Add(activity, account);
  TESSERA_ASSIGN_OR_RETURN(
      const StepResult step,
      results_.AddStep(record, account, settings_.batch * settings_.length));
  if (metrics_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(metrics_->Add(step, world_.size()));
  }
  if (table_) table_->Add(step);
  return absl::OkStatus();
}

void Worker::WatchMemory() {
  if (!watch_) return;
  const auto notice = watch_->AfterStep();
  if (notice && sinks_.table != nullptr && !settings_.quiet) {
    *sinks_.table << "train: " << *notice << std::endl;
  }
}

// The last step's checkpoint is SaveLast's.
absl::Status Worker::CheckpointIfDue() {
  const int64_t every = settings_.checkpoint_every;
  if (checkpoints_ == nullptr || every == 0 || rank_->steps() % every != 0 ||
      rank_->steps() == settings_.steps) {
    return absl::OkStatus();
  }
  return StartCheckpoint();
}

absl::Status Worker::StartCheckpoint() {
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(checkpoints_->Start());
  checkpointed_ = rank_->steps();
  if (trace_ != nullptr)
    trace_->AddCheckpoint("copy", {begin, MonotonicNanos()});
  return absl::OkStatus();
}

// Nothing trains any more, so that the state needs no copy to be written.
absl::Status Worker::SaveLast() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(checkpointed_ == rank_->steps()
                              ? checkpoints_->Wait().status()
                              : checkpoints_->Save().status());
  if (trace_ != nullptr) {
    trace_->AddCheckpoint("write", {begin, MonotonicNanos()});
  }
  return absl::OkStatus();
}

absl::Status Worker::Finish() {
  TESSERA_RETURN_IF_ERROR(SaveLast());
  if (table_) table_->Finish();
  return trace_ == nullptr ? absl::OkStatus() : trace_->Write();
}

}  // namespace

absl::StatusOr<RunResult> RunWorker(collectives::Communicator& world,
                                    const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const TrainingData& data,
                                    const WorkerSinks& sinks) {
  if (data.tokenizer == nullptr || data.corpus == nullptr || !data.samples) {
    return absl::InvalidArgumentError(
        "the training data has no tokenizer, corpus or samples; take what "
        "OpenTrainingData returns");
  }
  return Worker(world, settings, model, data, sinks).Run();
}

}  // namespace tessera::train
