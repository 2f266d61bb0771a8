#include "tools/train/predict/state/state_memory.h"

#include "base/status_macros.h"
#include "offload/tier/file_tier.h"
#include "zero3/checkpoint/state/state_blocks.h"
#include "zero3/estimate/memory_use.h"

namespace tessera::train {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;

// AdamW keeps two moments.
absl::StatusOr<int64_t> SnapshotBytes(const StatePlan& plan) {
  TESSERA_ASSIGN_OR_RETURN(const zero3::StateShare share,
                           zero3::ShareOf(plan.options().stage, plan.layout(),
                                          plan.data_rank(), plan.data_ranks()));
  int64_t bytes = 0;
  for (const zero3::BlockRange& block :
       zero3::PlanBlocks(share, plan.options().moments, kBlockElements)) {
    bytes += block.bytes();
  }
  return bytes;
}

// Where nothing limits what stays, all weights are whole between a step's
// forward and backward passes.
int64_t GatheredBytes(const StatePlan& plan) {
  if (plan.options().stage < 3 || plan.data_ranks() == 1) return 0;
  int64_t bytes = 0;
  for (const zero3::Parameter& parameter : plan.model().all()) {
    if (!plan.IsWhole(parameter)) bytes += plan.GatheredBytes(parameter);
  }
  return bytes;
}

}  // namespace

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
  memory.gathered = GatheredBytes(plan);
  memory.host = use.Of(Tier::kHost);
  memory.files = use.Of(Tier::kFile);
  if (plan.homes().has(StateHome::kFiles)) {
    memory.staging = offload::FileTierOptions().bounce_bytes;
  }
  TESSERA_ASSIGN_OR_RETURN(memory.snapshot, SnapshotBytes(plan));
  return memory;
}

}  // namespace tessera::train
