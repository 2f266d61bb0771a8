// GradientClipping: the norm of the whole model's gradients, and the factor
// that limits it.
#ifndef TESSERA_ZERO3_STATE_GRADIENT_CLIPPING_H_
#define TESSERA_ZERO3_STATE_GRADIENT_CLIPPING_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "offload/optimizer/gradient_statistics.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/gradient_reducer.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_groups.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

// Measures the gradients of a step.
//
//   TESSERA_ASSIGN_OR_RETURN(Event measured, clipping->StartMeasuring());
//   TESSERA_ASSIGN_OR_RETURN(auto own, clipping->MeasuredHere());
//   TESSERA_ASSIGN_OR_RETURN(auto all, clipping->SumOverRanks(own));
//   const double factor = clipping->FactorOf(all.Norm() / loss_scale);
class GradientClipping {
 public:
  // All arguments must outlive this.
  static absl::StatusOr<std::unique_ptr<GradientClipping>> Create(
      const StateContext& context, const ShardedStateOptions& options,
      const StateGroups& groups, GradientReducer& gradients,
      StagingPool& staging);

  // Enqueues the measurement of the reduced gradients of this rank, until the
  // event. They must be final: if the host executes the step, they are
  // downloaded.
  absl::StatusOr<Event> StartMeasuring();
  // The sums of this rank's gradients; waits for the measurement. The only wait
  // of a step for the device, unless the host executes the step.
  absl::StatusOr<offload::GradientStatistics> MeasuredHere();
  // A collective: the sums of all ranks.
  absl::StatusOr<offload::GradientStatistics> SumOverRanks(
      const offload::GradientStatistics& own);

  // The factor that limits a gradient of this norm to clip_norm.
  double FactorOf(double norm) const {
    return offload::ClipFactor(norm, options_.clip_norm);
  }

 private:
  // A trainable parameter, and the elements that this rank counts in the norm,
  // relative to the first that it owns.
  struct Counted {
    ParameterId id;
    std::vector<ElementRange> ranges;
  };

  GradientClipping(const StateContext& context,
                   const ShardedStateOptions& options,
                   const StateGroups& groups, GradientReducer& gradients,
                   StagingPool& staging);

  std::vector<ElementRange> RangesOf(const ModelParameter& parameter) const;

  const StateContext context_;
  const ShardedStateOptions& options_;
  const StateGroups& groups_;
  GradientReducer& gradients_;
  StagingPool& staging_;
  std::vector<Counted> counted_;
  Buffer statistics_;  // One GradientStatistics for each counted range.
  Download download_;
  double sums_[2] = {};
  std::optional<collectives::PreparedOperation> agree_sum_, model_sum_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENT_CLIPPING_H_
