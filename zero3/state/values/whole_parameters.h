// WholeParameters: parameters that every rank keeps whole: all of them where
// they are not sharded, small ones where they are.
//
//   values.Value(id);                                 // to compute with
//   values.Own(id);                                   // this rank updates it
//   TESSERA_RETURN_IF_ERROR(values.Publish());        // and the others get it
#ifndef TESSERA_ZERO3_STATE_VALUES_WHOLE_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_VALUES_WHOLE_PARAMETERS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/state/typed_span.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/state_seat.h"

namespace tessera::zero3 {

class WholeParameters {
 public:
  // Zeros. `group` outlives this, and is that of the layout's ranks.
  static absl::StatusOr<std::unique_ptr<WholeParameters>> Create(
      const StateSeat& seat, std::vector<ParameterId> ids,
      collectives::Communicator& group);

  bool Has(ParameterId id) const {
    return has_[static_cast<size_t>(id.value())];
  }

  // With the parameter's shape. Precondition of this and the next: Has(id).
  absl::StatusOr<TensorView> Value(ParameterId id) const;

  // The elements of this rank's extent.
  offload::TypedSpan Own(ParameterId id) const;

  // A collective: every rank's own elements reach all others.
  absl::Status Publish() const;

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
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_VALUES_WHOLE_PARAMETERS_H_
