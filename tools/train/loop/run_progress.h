// RunProgress: where a run is, which a checkpoint records beside the state.
// FindSpike: whether the loss of a step is far above those before it.
//
//   std::vector<double> losses = {2.1, 2.0, 2.2, 2.0};
//   FindSpike(losses, /*loss=*/4.1, /*factor=*/1.5);  // {.usual = 2.05}
//   FindSpike(losses, /*loss=*/2.9, /*factor=*/1.5);  // nullopt
//
// After a spike a run goes back to a checkpoint from before it and leaves out
// the samples since then, as Chowdhery et al., PaLM, arXiv 2204.02311, section
// 5.1: spikes come of some data in some state, not of the data alone.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RUN_PROGRESS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RUN_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::train {

struct RunProgress {
  int64_t steps = 0;  // The index of the next step.
  // Samples that rollbacks left out: the next step's samples follow these and
  // those of the steps before it.
  int64_t skipped_samples = 0;
  int64_t rollbacks = 0;
  // The losses of the last RunOptions::spike_window steps, newest last. One
  // that is not finite is infinite here.
  std::vector<double> losses = {};

  // After step `steps`, of this loss. Keeps the `window` newest losses.
  void AddStep(double loss, int64_t window);

  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

// Sets the keys "steps" and, unless they are 0 or empty, "skipped_samples",
// "rollbacks" and "losses".
void AddTo(const RunProgress& progress,
           std::map<std::string, std::string>& metadata);

// For untrusted metadata. InvalidArgument, with the key, if "steps" is missing
// or a value is invalid.
absl::StatusOr<RunProgress> ProgressFrom(
    const std::map<std::string, std::string>& metadata);

struct LossSpike {
  double usual = 0;  // The median of the losses before.
  // Of the last losses, how many had risen by more than half of the rise of a
  // spike: the spike begins with the first of these.
  size_t rising = 0;
};

// nullopt if there are no losses before, or `loss` is at most `factor` times
// their median. A loss that is not finite is a spike. `losses` are those of
// RunProgress; `factor` is above 1.
std::optional<LossSpike> FindSpike(std::span<const double> losses, double loss,
                                   double factor);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RUN_PROGRESS_H_
