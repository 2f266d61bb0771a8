// GradientReducer: accumulates a rank's gradients and reduces them over ranks.
#ifndef TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_
#define TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/gradient_reduction.h"
#include "zero3/state/host_copies.h"
#include "zero3/state/reduce_buckets.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_groups.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

// Accumulates gradients, reduces them over ranks layer by layer, and holds the
// sums of the elements that this rank owns.
//
//   // After the backward pass of a layer, whose parameters are `window`:
//   TESSERA_ASSIGN_OR_RETURN(TensorView gradient, reducer->Gradient(id));
//   ... the pass has added to it ...
//   TESSERA_RETURN_IF_ERROR(reducer->Start(window));  // Asynchronous.
//   // At the end of the step:
//   TESSERA_RETURN_IF_ERROR(reducer->Finish());
//   TESSERA_ASSIGN_OR_RETURN(auto own, reducer->OpenOwn(id));
//
// Stages 0 and 1: whole gradients are model state and are reduced in place,
// once a step. Stages 2 and 3: a whole gradient has memory from the first call
// of Gradient to the end of its reduction, which adds the sums to the rank's
// shard; any number of reductions a step is allowed. At most one window is
// being reduced, and starting the next one waits for it. So a rank holds the
// whole gradients of the current layer and of the layer being reduced (and of
// others if the caller accumulates them over micro-batches). A group of one
// rank with its shards in memory accumulates into the shards and reduces
// nothing.
//
// Messages: a large gradient is reduced in place, in its own message; the small
// gradients of a window are packed (ReduceBuckets). All ranks must start the
// same windows in the same order; otherwise they get an error
// (Operation::label). One thread at a time.
class GradientReducer {
 public:
  // If the host executes the optimizer's step, gradients are downloaded to
  // `host` once they are final; otherwise it is null. All arguments must
  // outlive the reducer; no other collectives run on the groups.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      const StateContext& context, const ShardedStateOptions& options,
      const StateGroups& groups, std::shared_ptr<ShardPrefetch> prefetch,
      HostCopies* host);

  // OK if the gradient may be accumulated into. InvalidArgument if the
  // parameter is frozen; FailedPrecondition if gradients are whole and this one
  // was reduced in this step.
  absl::Status CheckOpen(ParameterId id) const;
  // The whole gradient, with the parameter's shape: the sum since its last
  // reduction. Precondition: CheckOpen.
  absl::StatusOr<TensorView> Gradient(ParameterId id);

  // OK if the window can be reduced. Errors as for CheckOpen; InvalidArgument
  // if it has some but not all trainable parameters of a bucket. A whole group
  // of the model is always valid.
  absl::Status CheckWindow(std::span<const ParameterId> window) const;
  // A collective. Starts to reduce the window's trainable parameters. Gradients
  // that were never accessed are zeros. Precondition: CheckWindow.
  absl::Status Start(std::span<const ParameterId> window);

  // The sums of the elements that this rank owns, which the caller may change
  // until Finish. The queue waits for the parameter's reduction.
  absl::StatusOr<offload::TypedSpan> OpenForChange(ParameterId id);

  // A collective. FailedPrecondition on every rank, naming a rank and a
  // parameter, if a gradient was not reduced in this step, or was changed after
  // its last reduction. With allow_unused, gradients that were neither accessed
  // nor reduced are set to zeros first.
  absl::Status CheckComplete();
  // Later work of the device's queue comes after all reductions.
  absl::Status Finish();

  // OpenOwn or OpenForStep will be called soon.
  void AnnounceOwn(ParameterId id);
  // The sums of the elements that this rank owns (possibly no elements), valid
  // until CloseOwn, for the device. With `is_final`, they do not change any
  // more in this step, so that the host may download them.
  absl::StatusOr<offload::TypedSpan> OpenOwn(ParameterId id,
                                             bool is_final = false);
  absl::Status CloseOwn(ParameterId id, bool changed);
  // The sums for the optimizer's step, on the device or on the host.
  // Preconditions: the rank owns elements of `id`, and Finish has returned.
  absl::StatusOr<offload::TypedSpan> OpenForStep(ParameterId id);
  absl::Status CloseAfterStep(ParameterId id);
  // True if the sums are in a tier.
  bool in_tier() const { return is_sharded() && shards_->in_tier(); }

  // Begins the next step: sets all gradients to zeros.
  absl::Status Clear();

  // Aborts the groups that this object created.
  void Abort(std::string_view reason) { wire_->Abort(reason); }

 private:
  struct Entry {
    // The whole gradient, if its bucket is packed.
    AccountedMemory memory;
    bool is_added = false;    // Changed since its last reduction.
    bool is_reduced = false;  // Reduced in this step.
    bool has_sums = false;    // The shard has sums of this step.
    // The number of reductions in this step and in the previous one.
    int64_t reductions = 0, previous_reductions = 0;
  };
  struct InFlight {
    size_t bucket = 0;
    PendingReduction reduction;
  };

  GradientReducer(const StateContext& context,
                  const ShardedStateOptions& options, const StateGroups& groups,
                  std::vector<DType> dtypes, HostCopies* host);

  StateOps& ops() const { return *context_.device.ops; }
  bool is_sharded() const { return shards_ != nullptr; }
  DType DTypeOf(ParameterId id) const { return dtypes_[IndexOf(id)]; }
  const ReduceBucket& BucketAt(size_t index) const {
    return buckets_.all()[index];
  }
  absl::Status CreateShards(std::shared_ptr<ShardPrefetch> prefetch);
  absl::Status AllocateKept();
  // Zeros. Memory that is not kept over steps is from the pool.
  absl::Status Allocate(std::string_view key, int64_t bytes, bool is_kept,
                        AccountedMemory& memory);
  absl::Status AllocateBucket(size_t index);
  absl::Status AllocateWhole(ParameterId id);
  absl::StatusOr<std::span<std::byte>> WholeOf(ParameterId id);
  absl::Status PackBucket(size_t index);
  absl::Status StartBucket(size_t index);
  absl::Status AwaitBucket(size_t index);
  absl::Status FinishFlights();
  absl::Status FinishOldest();
  absl::Status TakeOwn(size_t index);
  absl::Status AddToShard(const BucketPiece& piece, const std::byte* sums);
  absl::Status DownloadFinal(std::span<const ParameterId> reduced);
  absl::Status ForgetDownload(ParameterId id);
  absl::Status ZeroMissing();
  collectives::Buffer OwnBlock(size_t index);

  const StateContext context_;
  const ShardedStateOptions& options_;
  const StateGroups& groups_;
  const std::vector<DType> dtypes_;  // By id.
  HostCopies* const host_;
  const ReduceBuckets buckets_;
  std::unique_ptr<ShardStore> shards_;  // Stages 2 and 3; by id.
  // True for one rank with its shards in memory: the shards are the gradients.
  bool is_in_shards_ = false;
  BufferPool pool_;
  std::vector<AccountedMemory> bucket_memory_;  // By bucket.
  ById<Entry> entries_;
  std::unique_ptr<GradientReduction> wire_;
  std::deque<InFlight> in_flight_;
  std::vector<ParameterId> opened_;        // By OpenForChange.
  std::vector<ParameterId> last_reduced_;  // The last window of Start.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_
