#include "tools/train/loop/checkpoint_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/watch/live_place.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::train {

using collectives::MonotonicNanos;

std::string CheckpointHistory::directory() const {
  return run_.settings.run_dir + "/checkpoints";
}

// Rank 0's choice.
absl::StatusOr<std::string> CheckpointHistory::BestPath() const {
  absl::StatusOr<zero3::FoundCheckpoint> best = zero3::FoundCheckpoint();
  if (run_.is_first()) {
    best = zero3::LeastCheckpoint(directory(), std::string(kEvalLossKey));
  }
  TESSERA_RETURN_IF_ERROR(run_.Agree(best.status()),
                          Annotate(_, "--resume=best"));
  return run_.FromFirst(best->path);
}

// The least validation loss among the existing checkpoints, as rank 0 sees
// them.
absl::StatusOr<double> CheckpointHistory::BestLoss() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::string text;
  if (run_.is_first()) {
    const std::string key(kEvalLossKey);
    const auto best = zero3::LeastCheckpoint(directory(), key);
    if (best.ok()) {
      TESSERA_ASSIGN_OR_RETURN(const auto manifest,
                               zero3::ReadManifest(best->path));
      text = manifest.parts[0].metadata.at(key);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(text, run_.FromFirst(text));
  double loss = kInfinity;
  return absl::SimpleAtod(text, &loss) ? loss : kInfinity;
}

absl::Status CheckpointHistory::Resume(TrainRank& rank) {
  const std::string& resume = run_.settings.resume;
  if (resume.empty()) return absl::OkStatus();
  std::string path = resume == "latest" ? directory() : resume;
  if (resume == "best") {
    TESSERA_ASSIGN_OR_RETURN(path, BestPath());
  }
  const std::string flag = absl::StrCat("--resume=", resume);
  absl::StatusOr<std::string> found = path;
  if (run_.is_first()) found = ResolveCheckpoint(path);
  TESSERA_RETURN_IF_ERROR(run_.Agree(found.status()), Annotate(_, flag));
  TESSERA_ASSIGN_OR_RETURN(path, run_.FromFirst(*found));
  TESSERA_RETURN_IF_ERROR(RestoreRun(path, run_.identity(), rank),
                          Annotate(_, flag));
  TESSERA_ASSIGN_OR_RETURN(const zero3::CheckpointManifest manifest,
                           zero3::ReadManifest(path), Annotate(_, flag));
  TESSERA_ASSIGN_OR_RETURN(const RunIdentity saved,
                           IdentityFrom(manifest.parts[0].metadata),
                           Annotate(_, flag));
  if (const std::string& model = run_.settings.init_from; !model.empty()) {
    run_.Say(absl::StrCat("continues from ", path,
                          "; the weights of --init_from=", model,
                          " are not used"));
  }
  // Checkpoints of earlier versions have none.
  if (!saved.source.config.empty()) run_.source = saved.source;
  SayNewRate(rank);
  Note(rank, std::move(path));
  return absl::OkStatus();
}

void CheckpointHistory::SayNewRate(TrainRank& rank) const {
  constexpr double kNoticeable = 0.01;
  const std::optional<double> before = rank.progress().learning_rate;
  if (!before.has_value()) return;
  const int64_t step = rank.steps();
  const double now = rank.options().learning_rate.At(step);
  if (std::abs(now - *before) <= kNoticeable * std::max(now, *before)) return;
  run_.Say(absl::StrFormat(
      "the learning rate of step %d is %.3g; with the settings of the "
      "checkpoint it would be %.3g (see --learning_rate, --lr_schedule, "
      "--warmup_steps and --steps)",
      step + 1, now, *before));
}

absl::Status CheckpointHistory::WriteFrom(TrainRank& rank) {
  const Settings& settings = run_.settings;
  if (settings.run_dir.empty()) return absl::OkStatus();
  rank_ = &rank;
  // Checkpoints are written in the background: the rank does not wait for the
  // collectives of their groups.
  if (run_.sinks.collectives != nullptr) run_.sinks.collectives->SetOn(false);
  absl::StatusOr<std::unique_ptr<RunCheckpoints>> checkpoints =
      RunCheckpoints::Create(rank, {.directory = directory(),
                                    .keep = settings.keep_checkpoints,
                                    .keep_best = settings.keep_best,
                                    .identity = run_.identity()});
  if (run_.sinks.collectives != nullptr) run_.sinks.collectives->SetOn(true);
  TESSERA_ASSIGN_OR_RETURN(checkpoints_, std::move(checkpoints));
  if (settings.keep_best) {
    TESSERA_ASSIGN_OR_RETURN(best_loss_, BestLoss());
  }
  return absl::OkStatus();
}

// SaveLast writes the checkpoint of the last step.
absl::Status CheckpointHistory::SaveIfDue(std::optional<double> eval_loss) {
  const ActionScope place(RankAction::kCheckpoint);
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const int64_t steps = rank_->steps(), every = run_.settings.checkpoint_every;
  const bool is_regular = every > 0 && steps % every == 0;
  const bool is_best =
      run_.settings.keep_best && eval_loss && *eval_loss < best_loss_;
  if (!(is_regular || is_best) || steps == run_.settings.steps ||
      steps == checkpointed_) {
    return absl::OkStatus();
  }
  if (is_best) best_loss_ = *eval_loss;
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(Wait());
  TESSERA_RETURN_IF_ERROR(checkpoints_->Start(eval_loss));
  Note(*rank_, absl::StrCat(directory(), "/",
                            zero3::CheckpointName(rank_->state().steps())));
  run_.Trace("copy", begin);
  return absl::OkStatus();
}

absl::Status CheckpointHistory::SaveLast(std::optional<double> eval_loss) {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const int64_t begin = MonotonicNanos();
  const absl::Status before = checkpoints_->Wait().status();
  if (!before.ok() || checkpointed_ != rank_->steps()) {
    TESSERA_RETURN_IF_ERROR(ContinueWithout(before));
    TESSERA_RETURN_IF_ERROR(Save(eval_loss).status());
  }
  run_.Trace("write", begin);
  return absl::OkStatus();
}

absl::Status CheckpointHistory::Wait() {
  const ActionScope place(RankAction::kCheckpoint);
  return checkpoints_ == nullptr
             ? absl::OkStatus()
             : ContinueWithout(checkpoints_->Wait().status());
}

absl::Status CheckpointHistory::ContinueWithout(
    const absl::Status& checkpoint) {
  if (checkpoint.ok() || run_.settings.max_restarts == 0 ||
      !checkpoints_->group_status().ok()) {
    return checkpoint;
  }
  run_.Say(absl::StrCat("the run continues: ", checkpoint.message()));
  return absl::OkStatus();
}

void CheckpointHistory::Note(TrainRank& rank, std::string path) {
  checkpointed_ = rank.steps();
  saved_.push_back({rank.steps(), rank.state().steps(), std::move(path)});
}

absl::StatusOr<std::optional<SavedStep>> CheckpointHistory::LastBy(
    int64_t step) {
  if (checkpoints_ == nullptr) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(Wait());
  std::string text;
  for (size_t i = saved_.size(); run_.is_first() && text.empty() && i-- > 0;) {
    const SavedStep& saved = saved_[i];
    if (saved.steps <= step &&
        zero3::CheckComplete({saved.optimizer_steps, saved.path}).ok()) {
      text = absl::StrCat(i);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(text, run_.FromFirst(text));
  size_t chosen = 0;
  if (!absl::SimpleAtoi(text, &chosen)) return std::nullopt;
  return saved_[chosen];
}

absl::Status CheckpointHistory::RemoveAfter(const SavedStep& saved) {
  absl::Status removed;
  zero3::CheckpointDirectory files(zero3::FileCalls::System(), directory());
  while (saved_.back().steps > saved.steps) {
    if (run_.is_first()) {
      removed.Update(files.Remove(saved_.back().optimizer_steps));
    }
    saved_.pop_back();
  }
  checkpointed_ = saved.steps;
  return run_.Agree(removed);
}

}  // namespace tessera::train
