// SharedGradients: at the end of a step, sums the gradients of weights that
// several stages or ranks hold.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       SharedGradients shared,
//       SharedGradients::Create(communicator, queue, schedule, tied, call));
//   TESSERA_RETURN_IF_ERROR(shared.Add(stages));
//
// There are two kinds: the two copies of every stage in a two-way map, and tied
// weights. Copies on one rank are summed without messages.
#ifndef TESSERA_PIPELINE_EXECUTE_SHARED_GRADIENTS_H_
#define TESSERA_PIPELINE_EXECUTE_SHARED_GRADIENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "pipeline/execute/options.h"
#include "pipeline/execute/stage.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// InvalidArgument if tied weights have no name, a duplicate name, or fewer than
// two stages, or if one of their stages is repeated or does not exist.
absl::Status CheckTied(const std::vector<TiedWeights>& tied, int64_t stages);

// Returns this rank's implementation of the stage.
using StageOf = std::function<Stage&(int32_t stage)>;

class SharedGradients {
 public:
  // A collective: all ranks pass the same schedule, tied weights and call.
  // `tied` must have passed CheckTied. The gradients are computed on `queue`,
  // which must outlive this object.
  static absl::StatusOr<SharedGradients> Create(
      collectives::Communicator& communicator, Queue& queue,
      const Schedule& schedule, const std::vector<TiedWeights>& tied,
      const collectives::CallOptions& call);

  // Enqueues the sums: for later work on the queue, every copy holds the sum
  // over all copies. A collective. The error names rank and stage.
  absl::Status Add(const StageOf& stage_of);

  // Aborts the groups, so that ranks waiting for this one fail with `reason`.
  void Abort(std::string_view reason);

 private:
  // Stages of this rank whose gradients are summed with those of the other
  // ranks of `group`; null if there are none.
  struct Tie {
    std::string name;
    std::vector<int32_t> stages;
    std::unique_ptr<collectives::Communicator> group;
  };

  explicit SharedGradients(Queue& queue) : queue_(&queue) {}

  absl::Status AddCopies(Stage& implementation);
  absl::Status AddTied(const Tie& tie, const StageOf& stage_of);
  std::string At(int32_t stage) const;

  Queue* queue_;
  int64_t rank_ = 0;
  collectives::CallOptions call_;
  std::unique_ptr<collectives::Communicator> copies_;  // If two-way: the pair.
  std::vector<int32_t> copied_;                        // Stages, ascending.
  std::vector<Tie> ties_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_SHARED_GRADIENTS_H_
