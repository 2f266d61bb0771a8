// HostCopies: the copies through which the host executes the optimizer's step
// for a device (ZeRO-Offload).
#ifndef TESSERA_ZERO3_STATE_HOST_COPIES_H_
#define TESSERA_ZERO3_STATE_HOST_COPIES_H_

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/model_weights.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// Pinned copies of this rank's gradients and values: gradients are downloaded
// when they are final, and new values are uploaded after the step.
//
//   TESSERA_RETURN_IF_ERROR(copies.StartDownload(id, gradient));
//   ...
//   TESSERA_ASSIGN_OR_RETURN(auto gradient, copies.Gradient(id));
//   TESSERA_ASSIGN_OR_RETURN(auto value, copies.OpenValue(id, "step"));
//   ... the host updates the value ...
//   TESSERA_RETURN_IF_ERROR(copies.CloseValue(id));  // Uploads it.
//
// Copies have a queue per direction. Bytes for each element of a 16-bit
// parameter with gradients of g bytes: g down, 2 up. A 32-bit or 64-bit
// parameter is its own master weight, so its value is downloaded too. Values
// and gradients in tiers are not copied: the host accesses them there. The
// pinned memory, allocated in the first step, holds a rank's gradients and
// values. Ren et al., ZeRO-Offload, arXiv 2101.06840, section 4.
class HostCopies {
 public:
  // `prefetch` has the queues of the copies. The weights must outlive this.
  HostCopies(const StateContext& context, ModelWeights& weights,
             std::shared_ptr<ShardPrefetch> prefetch)
      : context_(context),
        weights_(weights),
        prefetch_(std::move(prefetch)),
        copies_(context.model().count()) {}

  // Waits for all copies.
  ~HostCopies() { prefetch_->AwaitWork(); }

  // Starts to download the final gradient of a parameter, which is empty if it
  // is in a tier, and the value if it is the master weight. Required once a
  // step for each trainable parameter, before the step; repeated calls in a
  // step have no effect.
  absl::Status StartDownload(ParameterId id,
                             const offload::ConstTypedSpan& gradient);
  // Invalidates the download of a gradient that will change: StartDownload must
  // be called again. Later work of the device's queue comes after the download.
  absl::Status ForgetDownload(ParameterId id);
  // Ends a step: later work of the device's queue comes after the downloads.
  absl::Status EndStep();

  // The parameters whose downloads were started in this step, in order.
  std::span<const ParameterId> downloads() const { return downloads_; }
  // False if the download was not started, or forgotten.
  bool IsDownloaded(ParameterId id) const { return copies_[id].is_downloaded; }

  // The downloaded gradient; waits for it.
  absl::StatusOr<offload::TypedSpan> Gradient(ParameterId id);
  // The value in host memory, until CloseValue. `why` is for errors of the
  // device.
  absl::StatusOr<offload::TypedSpan> OpenValue(ParameterId id,
                                               std::string_view why);
  // Uploads the value; the next use of the parameter waits for that.
  absl::Status CloseValue(ParameterId id);

 private:
  struct Copy {
    Buffer gradient, value;
    offload::TypedSpan gradient_span;
    Event downloaded;            // Gradient and value.
    bool is_downloaded = false;  // In this step; may be in flight.
    Event uploaded;              // The last upload of the value.
  };

  absl::Status Allocate(Buffer& buffer, size_t bytes);
  // Copies from the device to `target`, which is allocated on first use.
  absl::StatusOr<Event> Download(const offload::ConstTypedSpan& from,
                                 Buffer& target);
  absl::StatusOr<Event> Upload(const Buffer& from,
                               const offload::TypedSpan& target);

  const StateContext context_;
  ModelWeights& weights_;
  const std::shared_ptr<ShardPrefetch> prefetch_;
  ById<Copy> copies_;
  Event last_download_;
  std::vector<ParameterId> downloads_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_HOST_COPIES_H_
