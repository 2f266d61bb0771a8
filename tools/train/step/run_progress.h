// The numbers of a step; the progress of a run, which a checkpoint records
// besides the state; and the detection of spikes: steps whose loss is far above
// the losses before them.
//
//   std::vector<double> losses = {2.1, 2.0, 2.2, 2.0};
//   FindSpike(losses, /*loss=*/4.1, /*factor=*/1.5);  // {.usual = 2.05}
//   FindSpike(losses, /*loss=*/2.9, /*factor=*/1.5);  // nullopt
//
// After a spike a run returns to an earlier checkpoint and skips the samples
// since then, as in Chowdhery et al., PaLM, arXiv 2204.02311, section 5.1: a
// spike is caused by the combination of data and model state, not by the data
// alone.
#ifndef TESSERA_TOOLS_TRAIN_STEP_RUN_PROGRESS_H_
#define TESSERA_TOOLS_TRAIN_STEP_RUN_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::train {

// The numbers of a step. The same on every rank.
struct StepRecord {
  int64_t step = 0;  // From 0.
  // The mean cross-entropy over all tokens of the step, without the terms of
  // --label_smoothing and --z_loss; with --objective=dpo the mean loss of the
  // pairs.
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  bool skipped = false;  // The gradients were not finite.
  // The mean loss over the validation batches, if validation followed the step.
  std::optional<double> eval_loss = {};
  // The mean loss over the test samples, after the last step, if there are any.
  std::optional<double> test_loss = {};
  // For mixtures of experts: the tokens of the busiest expert divided by the
  // mean; the maximum over the layers.
  std::optional<double> expert_imbalance = {};
  // With --qk_clip: the largest score of attention before the softmax, times
  // its scale, in the step's forwards.
  std::optional<double> max_attention_score = {};
  // With --objective=dpo, over the pairs: the mean rewards of the chosen and
  // the rejected completions, and the share of pairs whose chosen reward is
  // larger (model/preference_loss.h).
  std::optional<double> reward_chosen = {};
  std::optional<double> reward_rejected = {};
  std::optional<double> reward_accuracy = {};
  int64_t tokens = 0;     // Tokens of the step, over all ranks.
  int64_t rollbacks = 0;  // Before the step. See RunProgress.
};

struct RunProgress {
  int64_t steps = 0;  // The index of the next step.
  // The number of samples that rollbacks skipped. The next step's samples
  // follow the skipped ones and those of all earlier steps.
  int64_t skipped_samples = 0;
  int64_t rollbacks = 0;
  // The losses of the last RunOptions::spike_window steps, newest last. NaN is
  // recorded as infinity.
  std::vector<double> losses = {};
  // The learning rate of the next step by the settings of the run that saved
  // the checkpoint; unknown in checkpoints of imports and of earlier versions.
  std::optional<double> learning_rate = {};

  // Records step `steps` with its loss. Keeps the `window` newest losses.
  void AddStep(double loss, int64_t window);

  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

// Sets the keys "steps" and, unless they are 0 or empty, "skipped_samples",
// "rollbacks", "learning_rate" and "losses".
void AddTo(const RunProgress& progress,
           std::map<std::string, std::string>& metadata);

// Reads the progress from untrusted metadata. InvalidArgument, with the key, if
// "steps" is missing or a value is invalid.
absl::StatusOr<RunProgress> ProgressFrom(
    const std::map<std::string, std::string>& metadata);

struct LossSpike {
  double usual = 0;  // The median of the losses before the spike.
  // The number of last losses that had already risen by more than half of a
  // spike's rise. The spike begins with the first of these.
  size_t rising = 0;
};

// Returns nullopt if `losses` is empty, or if `loss` is at most `factor` times
// their median. An infinite or NaN loss is a spike. `losses` is
// RunProgress::losses; `factor` is above 1.
std::optional<LossSpike> FindSpike(std::span<const double> losses, double loss,
                                   double factor);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_STEP_RUN_PROGRESS_H_
