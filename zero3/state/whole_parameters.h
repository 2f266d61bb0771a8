// WholeParameters: the parameters that every rank keeps whole. OwnValues: the
// elements that a rank owns, of whole and of sharded parameters.
#ifndef TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// The parameters that every rank keeps whole: all of them below stage 3, small
// ones at stage 3.
//
//   values.Value(id);                            // For computation.
//   values.Own(id);                              // For this rank's update.
//   TESSERA_RETURN_IF_ERROR(values.MarkWritten(id));  // It is enqueued.
//   TESSERA_RETURN_IF_ERROR(values.StartPublish());   // Sends updates ...
//   TESSERA_RETURN_IF_ERROR(values.Wait(id));         // until here.
class WholeParameters {
 public:
  // All values are zero. `group` has the layout's ranks and must outlive this.
  static absl::StatusOr<std::unique_ptr<WholeParameters>> Create(
      const StateContext& context, std::vector<ParameterId> ids,
      collectives::Communicator& group);

  bool Has(ParameterId id) const {
    return has_[static_cast<size_t>(id.value())];
  }

  // Waits for the publication in progress.
  ~WholeParameters();

  // The values, with the parameter's shape; complete after Wait. Precondition
  // here and below: Has(id).
  absl::StatusOr<TensorView> Value(ParameterId id) const;

  // The elements of this rank's extent.
  offload::TypedSpan Own(ParameterId id) const;

  // Declares that the last enqueued work is the update of Own(id), so that its
  // publication need not wait for later work.
  absl::Status MarkWritten(ParameterId id);
  // Declares that another queue, which has waited for the device's queue,
  // writes Own(id) until `arrived`. The publication and Wait wait for that
  // event.
  absl::Status MarkWritten(ParameterId id, Event arrived);
  // A collective: starts to all-gather the elements that each rank owns, in the
  // order of parameters. Precondition: no publication is in flight (WaitAll).
  absl::Status StartPublish();
  // Orders later work of the device's queue after the arrival of the
  // parameter's values. Errors name the parameter.
  absl::Status Wait(ParameterId id);
  absl::Status WaitAll();

 private:
  WholeParameters(const StateContext& context, std::vector<ParameterId> ids,
                  collectives::Communicator& group)
      : context_(context), ids_(std::move(ids)), group_(group) {}

  std::span<std::byte> MemoryOf(ParameterId id) const {
    return memory_[static_cast<size_t>(id.value())].bytes();
  }

  const StateContext context_;
  const std::vector<ParameterId> ids_;
  collectives::Communicator& group_;
  std::vector<bool> has_;                // By id.
  std::vector<AccountedMemory> memory_;  // By id; gathered elements.
  // By id; the number 0 marks a parameter that was not written since the last
  // publication.
  std::vector<QueuePoint> written_;
  std::vector<Event> arrivals_;  // By id; not yet awaited.
  std::vector<std::optional<collectives::Work>> works_;  // By id; in flight.
};

// The elements that this rank owns, of whole and of sharded parameters.
class OwnValues {
 public:
  // `shards` may be null if no parameter is sharded; block shard_of[id] belongs
  // to parameter `id`. All arguments must outlive this.
  OwnValues(const StateContext& context, WholeParameters& whole,
            ShardStore* shards, const std::vector<size_t>& shard_of)
      : context_(context),
        whole_(whole),
        shards_(shards),
        shard_of_(shard_of) {}

  // The elements of the rank's extent of `id`, until Close.
  absl::StatusOr<offload::TypedSpan> Open(ParameterId id) {
    if (whole_.Has(id)) {
      TESSERA_RETURN_IF_ERROR(whole_.Wait(id));
      return whole_.Own(id);
    }
    const Extent extent = context_.OwnExtent(id);
    const DType dtype = context_.model()[id].dtype();
    if (extent.slot == 0) return offload::TypedSpan(nullptr, dtype, 0);
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                             shards_->Open(ShardOf(id)));
    return offload::TypedSpan(bytes.data(), dtype, extent.size());
  }

  absl::Status Close(ParameterId id, bool changed) {
    if (whole_.Has(id)) {
      return changed ? whole_.MarkWritten(id) : absl::OkStatus();
    }
    if (context_.OwnExtent(id).slot == 0) return absl::OkStatus();
    return shards_->Close(ShardOf(id), changed);
  }

  // True if the elements are in a tier, where the host may access them with
  // OpenOnHost and CloseOnHost.
  bool InTier(ParameterId id) const {
    return !whole_.Has(id) && shards_->block(ShardOf(id)).tier != nullptr;
  }
  absl::StatusOr<offload::TypedSpan> OpenOnHost(ParameterId id) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                             shards_->OpenOnHost(ShardOf(id)));
    return offload::TypedSpan(bytes.data(), context_.model()[id].dtype(),
                              context_.OwnExtent(id).size());
  }
  absl::Status CloseOnHost(ParameterId id, bool changed) {
    return shards_->CloseOnHost(ShardOf(id), changed);
  }

  // Like Close, for elements that another queue, which has waited for the
  // device's queue, writes until `arrived`. Precondition: !InTier(id).
  absl::Status CloseWritten(ParameterId id, Event arrived) {
    if (whole_.Has(id)) return whole_.MarkWritten(id, std::move(arrived));
    TESSERA_RETURN_IF_ERROR(Close(id, /*changed=*/false));
    shards_->SetArrival(ShardOf(id), std::move(arrived));
    return absl::OkStatus();
  }

  // Announces that the parameter will be opened soon.
  void Announce(ParameterId id) {
    if (whole_.Has(id) || context_.OwnExtent(id).slot == 0) return;
    shards_->Announce(ShardOf(id));
  }

 private:
  size_t ShardOf(ParameterId id) const {
    return shard_of_[static_cast<size_t>(id.value())];
  }

  const StateContext context_;
  WholeParameters& whole_;
  ShardStore* const shards_;
  const std::vector<size_t> shard_of_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WHOLE_PARAMETERS_H_
