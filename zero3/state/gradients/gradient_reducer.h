// GradientReducer: gradients that backward passes add up, reduced over ranks
// layer by layer, and the part of the sums that this rank owns.
//
//   // After the backward pass of a layer, whose parameters are `window`:
//   TESSERA_ASSIGN_OR_RETURN(TensorView gradient, reducer->Gradient(id));
//   ... the pass has added to it ...
//   TESSERA_RETURN_IF_ERROR(reducer->Start(window));  // Beside the next layer.
//   // At the end of the step:
//   TESSERA_RETURN_IF_ERROR(reducer->Finish());
//   TESSERA_ASSIGN_OR_RETURN(auto own, reducer->OpenOwn(id));
//
// Stages 0 and 1: whole gradients are model state, reduced once a step where
// they lie. Stages 2 and 3: a whole gradient has memory from the first call of
// Gradient until the reduction of its layer is over, and the sums are added to
// the rank's shard, as often in a step as the caller likes. At most the
// reduction of one window is under way: starting the next waits for it, so that
// a rank holds whole gradients of the layer at work and of the one on its way
// (and of no other unless the caller lets them accumulate). A rank that is
// alone with its shards in memory has its gradients there, and nothing to
// reduce.
//
// Messages. A large gradient is reduced where it lies, in a message of its own;
// small ones of a window are packed (ReduceBuckets). All ranks start the same
// windows in the same order, or get an error (Operation::label). One thread at
// a time.
#ifndef TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_
#define TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/state/typed_span.h"
#include "zero3/state/gradients/reduce_buckets.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/buffer_pool.h"
#include "zero3/state/shards/shard_store.h"
#include "zero3/state/shards/state_seat.h"
#include "zero3/state/wire/gradient_reduction.h"

namespace tessera::zero3 {

struct GradientOptions {
  // Gradients of a window below a quarter of this are packed into messages of
  // at most so many bytes.
  int64_t bucket_bytes = 25'000'000;
  bool average = false;  // Over the ranks of both groups; otherwise sums.
  // Messages of the shard group are int8 blocks. Needs sharded state.
  bool quantized = false;
  bool overlap = true;  // Start returns before the reduction is over.
};

// The ranks that gradients are reduced over.
struct GradientGroups {
  collectives::Communicator* shard = nullptr;
  // Those that hold the same shards; null: none.
  collectives::Communicator* replicas = nullptr;
};

class GradientReducer {
 public:
  // `dtypes`, by id, are those of the gradients. `shards`, of which block
  // shard_of[id] is that of parameter `id`, is null if gradients are whole. All
  // of these outlive the reducer; no other collectives run on the groups.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      const StateSeat& seat, const std::vector<DType>& dtypes,
      const GradientOptions& options, const GradientGroups& groups,
      ShardStore* shards, const std::vector<size_t>& shard_of);

  // Waits for what was started.
  ~GradientReducer();

  // OK if more may be added to a gradient. InvalidArgument if the parameter is
  // frozen; FailedPrecondition if gradients are whole and it was reduced in
  // this step.
  absl::Status CheckOpen(ParameterId id) const;

  // The whole gradient, with the parameter's shape: zeros, and what was added
  // since it was last reduced. Refused as by CheckOpen.
  absl::StatusOr<TensorView> Gradient(ParameterId id);

  // OK if the window can be reduced: refused as by CheckOpen, and with
  // InvalidArgument if it has some and not all trainable parameters of a
  // bucket. All those of a group of the model are always allowed.
  absl::Status CheckWindow(std::span<const ParameterId> window) const;
  // A collective. Starts to reduce the window's trainable parameters. A
  // gradient that was not asked for counts as zeros. Precondition: CheckWindow.
  absl::Status Start(std::span<const ParameterId> window);

  // A trainable parameter of which something was added after its last reduction
  // in this step, or that was not reduced in it; nothing if there is none.
  std::optional<ParameterId> FirstMissing() const;
  // Parameters that were neither asked for nor reduced have gradients of zeros.
  absl::Status ZeroMissing();

  // Returns when everything that was started is in the shards.
  absl::Status Finish();

  // The sums that this rank owns, until CloseOwn: of its extent's elements, or
  // none if it has no part. Waits for the parameter's reduction.
  absl::StatusOr<offload::TypedSpan> OpenOwn(ParameterId id);
  absl::Status CloseOwn(ParameterId id, bool changed);
  // Soon to be opened.
  void AnnounceOwn(ParameterId id);

  // Begins the next step: all gradients are zeros.
  void Clear();

  // Frees the ranks that wait in groups that this has made.
  void Abort(std::string_view reason) { wire_->Abort(reason); }

  const ReduceBuckets& buckets() const { return buckets_; }

 private:
  struct InFlight {
    size_t bucket = 0;
    std::optional<PendingReduction> reduction;
    std::optional<collectives::Work> all_reduce;  // Stage 0.
  };

  GradientReducer(const StateSeat& seat, const std::vector<DType>& dtypes,
                  const GradientOptions& options, const GradientGroups& groups,
                  ShardStore* shards, const std::vector<size_t>& shard_of);

  StateOps& ops() const { return *seat_.device.ops; }
  bool is_sharded() const { return shards_ != nullptr; }
  DType DTypeOf(ParameterId id) const {
    return dtypes_[static_cast<size_t>(id.value())];
  }
  const ReduceBucket& BucketAt(size_t index) const {
    return buckets_.all()[index];
  }
  absl::Status AllocateKept();
  absl::StatusOr<std::span<std::byte>> WholeOf(ParameterId id);
  absl::StatusOr<AccountedMemory> Allocate(std::string_view key, int64_t bytes);
  absl::Status AllocateBucket(size_t index);
  absl::Status AllocateOwn(ParameterId id);
  void PackBucket(size_t index);
  absl::Status StartBucket(size_t index);
  absl::Status FinishOldest();
  absl::Status FinishFlights();
  absl::Status AwaitBucket(size_t index);
  absl::Status TakeOwn(size_t index);
  absl::Status AddToShard(const BucketPiece& piece, const std::byte* sums);
  void FreeBucket(size_t index);
  collectives::Buffer OwnBlock(size_t index);

  const StateSeat seat_;
  const std::vector<DType> dtypes_;
  const GradientGroups groups_;
  const collectives::Reduction reduction_;
  const bool overlap_;
  ShardStore* const shards_;
  const std::vector<size_t> shard_of_;
  // Alone, with shards in memory: they are the gradients, and there is nothing
  // to reduce.
  const bool is_in_shards_;
  const ReduceBuckets buckets_;
  BufferPool pool_;                      // Of gradients that are not kept.
  std::vector<AccountedMemory> bucket_;  // By bucket.
  std::vector<AccountedMemory> own_;     // By id; of packed buckets.

  std::vector<bool> added_;     // By id: since its last reduction.
  std::vector<bool> reduced_;   // By id: in this step.
  std::vector<bool> has_sums_;  // By id: the shard, of this step.
  std::unique_ptr<GradientReduction> wire_;
  std::deque<InFlight> in_flight_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_
