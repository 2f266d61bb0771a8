#include "tools/checkpoint/reshard_run.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/checkpoint/run_plan.h"
#include "tools/checkpoint/write_run.h"
#include "tools/train/checkpoint/saved_run.h"

namespace tessera::tools {

absl::StatusOr<std::string> ReshardRun(const std::string& checkpoint,
                                       const std::string& directory,
                                       const ReshardOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::string found,
                           train::ResolveCheckpoint(checkpoint));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<train::SavedRun> saved,
                           train::SavedRun::Open(std::move(found)));
  TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const embedding,
                           saved->Get(train::kEmbeddingTensor));
  const zero3::CheckpointPart& part = saved->manifest().parts[0];
  const CheckpointPlan plan = {
      .identity = saved->identity(),
      .mesh = options.mesh,
      .zero = options.zero,
      .dtype = embedding->dtype,
      .moments = saved->moments(),
      .optimizer_steps = saved->manifest().step,
      .steps = saved->steps(),
      .loss_scale = part.loss_scale,
      .steps_since_scale_change = part.steps_since_scale_change};
  return WriteRun(
      zero3::FileCalls::System(), directory, plan,
      [&](const train::HeldTensor& held, zero3::StatePart state,
          const zero3::StateArray& to) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const tensor,
                                 saved->Get(held.name));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<train::TensorCopy> copies,
                                 saved->CopiesOf(*tensor, state, held, to.begin,
                                                 to.begin + to.capacity));
        return saved->Read(*tensor, state, copies, to);
      });
}

}  // namespace tessera::tools
