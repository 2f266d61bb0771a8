#include "tools/train/predict/state/state_memory.h"

#include "base/status_macros.h"
#include "offload/tier/file_tier.h"
#include "zero3/estimate/memory_use.h"

namespace tessera::train {

absl::StatusOr<StateMemory> PredictState(const StatePlan& plan) {
  using zero3::Purpose;
  using zero3::Tier;
  TESSERA_ASSIGN_OR_RETURN(const zero3::MemoryUse use,
                           plan.memory().Estimate(plan.data_rank()));
  const auto own = [&](Purpose purpose) {
    return use.At(purpose, Tier::kDevice);
  };
  StateMemory memory;
  memory.parameters = own(Purpose::kParameters) + own(Purpose::kCopies);
  memory.gradients = own(Purpose::kGradients);
  memory.optimizer = own(Purpose::kMasterWeights) + own(Purpose::kMoments);
  memory.buffers = own(Purpose::kGatherBuffers) + own(Purpose::kReduceBuckets) +
                   own(Purpose::kPrefetchBuffers);
  memory.host = use.Of(Tier::kHost);
  memory.files = use.Of(Tier::kFile);
  if (plan.homes().has(StateHome::kFiles)) {
    memory.staging = offload::FileTierOptions().bounce_bytes;
  }
  memory.start = memory.in_memory() - memory.buffers;
  for (const zero3::Parameter& parameter : plan.model().all()) {
    memory.start += parameter.bytes +
                    parameter.elements * static_cast<int64_t>(sizeof(float));
  }
  return memory;
}

}  // namespace tessera::train
