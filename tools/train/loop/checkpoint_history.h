// CheckpointHistory: the checkpoints of a run, when they are written, and to
// which the run may return.
//
//   CheckpointHistory history(run);
//   TESSERA_RETURN_IF_ERROR(history.Resume(*rank));    // --resume
//   TESSERA_RETURN_IF_ERROR(history.WriteFrom(*rank));
//   ...
//   TESSERA_RETURN_IF_ERROR(history.SaveIfDue(eval_loss));  // after each step
//   TESSERA_ASSIGN_OR_RETURN(const auto saved, history.LastBy(step));
//
// With --max_restarts the run continues without a checkpoint that could not be
// written, and says so; only the last one must succeed.
//
// Methods that return a status are collectives of the run's world.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_CHECKPOINT_HISTORY_H_
#define TESSERA_TOOLS_TRAIN_LOOP_CHECKPOINT_HISTORY_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/loop/run_context.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {

// A checkpoint to which the run may return.
struct SavedStep {
  int64_t steps = 0;  // The run's steps.
  int64_t optimizer_steps = 0;
  std::string path = {};
};

class CheckpointHistory {
 public:
  // `run` must outlive this.
  explicit CheckpointHistory(RunContext& run) : run_(run) {}

  // Restores the checkpoint that --resume selects, if any, and sets the source
  // of the run's model.
  absl::Status Resume(TrainRank& rank);

  // Checkpoints are those of `rank` until Release. With --run_dir only; without
  // it the methods below do nothing and return OK.
  absl::Status WriteFrom(TrainRank& rank);
  void Release() { checkpoints_.reset(); }
  bool writes() const { return checkpoints_ != nullptr; }

  // Starts a checkpoint if --checkpoint_every or --keep_best requires one.
  // `eval_loss` is the validation loss of the current state, if it is known.
  absl::Status SaveIfDue(std::optional<double> eval_loss);
  // Writes the state after the last step, without a copy.
  absl::Status SaveLast(std::optional<double> eval_loss);
  // Writes the current state without a copy and returns the path. Requires
  // writes().
  absl::StatusOr<std::string> Save(std::optional<double> eval_loss) {
    return checkpoints_->Save(eval_loss);
  }
  // Waits for the checkpoint that is being written, and returns its error
  // unless the run may continue without it.
  absl::Status Wait();

  // RunCheckpoints::write_time.
  absl::Duration write_time() const {
    return writes() ? checkpoints_->write_time() : absl::ZeroDuration();
  }

  // Records that the checkpoint at `path` contains the state of `rank`.
  void Note(TrainRank& rank, std::string path);
  // The newest complete checkpoint after at most `step` steps, as rank 0 sees
  // them. Waits like Wait.
  absl::StatusOr<std::optional<SavedStep>> LastBy(int64_t step);
  // Removes the checkpoints after `saved`, so that a restart does not find
  // them.
  absl::Status RemoveAfter(const SavedStep& saved);

  // The path of the last complete checkpoint; "" if there is none.
  std::string last_path() const {
    return checkpoints_ == nullptr ? "" : checkpoints_->last_path();
  }

  // The checkpoint from which Resume continued; "" for a new run.
  std::string resumed_from() const {
    return saved_.empty() ? "" : saved_.front().path;
  }

 private:
  absl::Status ContinueWithout(const absl::Status& checkpoint);
  // Prints a line if the schedule of the learning rate differs from the
  // checkpoint's.
  void SayNewRate(TrainRank& rank) const;
  std::string directory() const;
  absl::StatusOr<std::string> BestPath() const;
  absl::StatusOr<double> BestLoss() const;

  RunContext& run_;
  TrainRank* rank_ = nullptr;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  int64_t checkpointed_ = -1;  // Steps at the last checkpoint.
  // The checkpoints of this run's past, oldest first. Old ones may have been
  // removed.
  std::vector<SavedStep> saved_;
  // With --keep_best, the least validation loss of a checkpoint.
  double best_loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_CHECKPOINT_HISTORY_H_
