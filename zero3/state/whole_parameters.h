// WholeParameters: the parameters that every rank keeps whole: all below stage
// 3, small ones at stage 3.
//
//   values.Value(id);                            // For computation.
//   values.Own(id);                              // For this rank's update.
//   TESSERA_RETURN_IF_ERROR(values.StartPublish());   // Sends updates ...
//   TESSERA_RETURN_IF_ERROR(values.Wait(id));         // until here.
#ifndef TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/typed_span.h"
#include "zero3/state/accounted_memory.h"
#include "zero3/state/state_seat.h"

namespace tessera::zero3 {

class WholeParameters {
 public:
  // All values are zero. `group` has the layout's ranks and must outlive this.
  static absl::StatusOr<std::unique_ptr<WholeParameters>> Create(
      const StateSeat& seat, std::vector<ParameterId> ids,
      collectives::Communicator& group);

  bool Has(ParameterId id) const {
    return has_[static_cast<size_t>(id.value())];
  }

  // Waits for the publication under way.
  ~WholeParameters();

  // The values, with the parameter's shape; complete after Wait. Precondition
  // here and below: Has(id).
  absl::StatusOr<TensorView> Value(ParameterId id) const;

  // The elements of this rank's extent.
  offload::TypedSpan Own(ParameterId id) const;

  // A collective: starts to all-gather the elements that each rank owns, in the
  // order of parameters. Precondition: nothing is under way (WaitAll).
  absl::Status StartPublish();
  // Returns when the parameter's values have arrived. Errors name it.
  absl::Status Wait(ParameterId id);
  absl::Status WaitAll();

 private:
  WholeParameters(const StateSeat& seat, std::vector<ParameterId> ids,
                  collectives::Communicator& group)
      : seat_(seat), ids_(std::move(ids)), group_(group) {}

  std::span<std::byte> MemoryOf(ParameterId id) const {
    return memory_[static_cast<size_t>(id.value())].bytes();
  }

  const StateSeat seat_;
  const std::vector<ParameterId> ids_;
  collectives::Communicator& group_;
  std::vector<bool> has_;                // By id.
  std::vector<AccountedMemory> memory_;  // By id; gathered elements.
  std::vector<std::optional<collectives::Work>> works_;  // By id; under way.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_
