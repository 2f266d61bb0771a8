// OwnValues: the elements of parameters that this rank owns, in whole
// parameters or in shards.
#ifndef TESSERA_ZERO3_STATE_OWN_VALUES_H_
#define TESSERA_ZERO3_STATE_OWN_VALUES_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "offload/optimizer/typed_span.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_seat.h"
#include "zero3/state/whole_parameters.h"

namespace tessera::zero3 {

class OwnValues {
 public:
  // `shards` may be null if no parameter is sharded; block shard_of[id] belongs
  // to parameter `id`. All arguments must outlive this.
  OwnValues(const StateSeat& seat, WholeParameters& whole, ShardStore* shards,
            const std::vector<size_t>& shard_of)
      : seat_(seat), whole_(whole), shards_(shards), shard_of_(shard_of) {}

  // The elements of the rank's extent of `id`, until Close.
  absl::StatusOr<offload::TypedSpan> Open(ParameterId id) {
    if (whole_.Has(id)) {
      TESSERA_RETURN_IF_ERROR(whole_.Wait(id));
      return whole_.Own(id);
    }
    const Extent extent = seat_.OwnExtent(id);
    const DType dtype = seat_.model()[id].dtype();
    if (extent.slot == 0) return offload::TypedSpan(nullptr, dtype, 0);
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                             shards_->Open(ShardOf(id)));
    return offload::TypedSpan(bytes.data(), dtype, extent.size());
  }

  absl::Status Close(ParameterId id, bool changed) {
    if (whole_.Has(id) || seat_.OwnExtent(id).slot == 0) {
      return absl::OkStatus();
    }
    return shards_->Close(ShardOf(id), changed);
  }

  // The parameter will be opened soon.
  void Announce(ParameterId id) {
    if (whole_.Has(id) || seat_.OwnExtent(id).slot == 0) return;
    shards_->Announce(ShardOf(id));
  }

 private:
  size_t ShardOf(ParameterId id) const {
    return shard_of_[static_cast<size_t>(id.value())];
  }

  const StateSeat seat_;
  WholeParameters& whole_;
  ShardStore* const shards_;
  const std::vector<size_t> shard_of_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OWN_VALUES_H_
