// The reduction of a rank's gradients: ReduceBuckets assigns them to messages,
// and GradientReducer accumulates and reduces them.
#ifndef TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_
#define TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_

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
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/gradient_reduction.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// A range of elements of a parameter, and its position in a bucket.
struct BucketPiece {
  ParameterId parameter;
  int64_t begin = 0;  // In the parameter.
  int64_t size = 0;
  int64_t slot = 0;    // Elements with padding.
  int64_t offset = 0;  // In the bucket.

  friend bool operator==(const BucketPiece&, const BucketPiece&) = default;
};

// The gradients of a bucket, without their positions.
struct BucketContents {
  std::vector<ParameterId> parameters = {};
  DType dtype = DType::kF32;
  int64_t elements = 0;  // Including padding.
  bool is_direct = false;

  int64_t bytes() const { return elements * SizeInBytes(dtype); }
};

// The buckets of all trainable parameters, last group first. `dtypes`, by id,
// are the types of gradients. A bucket is full if one more gradient would make
// it larger than `bucket_bytes`, with padding. O(parameters) time.
std::vector<BucketContents> BucketsOf(const StateLayout& layout,
                                      std::span<const DType> dtypes,
                                      int64_t bucket_bytes);

struct ReduceBucket : BucketContents {
  // By rank: elements and pieces. The pieces of a rank are contiguous.
  std::vector<int64_t> counts;
  std::vector<std::vector<BucketPiece>> pieces;
};

// Assigns gradients to messages (buckets) and to offsets within them.
//
//   const ReduceBuckets buckets =
//       ReduceBuckets::Of(layout, dtypes, 25'000'000);
//   for (const ReduceBucket& bucket : buckets.all()) {
//     // a reduce_scatter of bucket.counts elements
//   }
//
// A bucket has gradients of one group of the model (a layer) and of one type,
// in the reverse order of use. It holds the elements of rank 0, then those of
// rank 1, and so on, so that a reduce_scatter gives each rank the slots that
// the layout assigns to it. If each gradient is contiguous nevertheless (all
// layouts except chunks, and a bucket with a single gradient) the bucket is
// direct: backward passes may write into it. For this reason, with chunks, a
// gradient of a quarter of `bucket_bytes` or more has its own bucket, and
// smaller gradients are packed.
class ReduceBuckets {
 public:
  // Like BucketsOf.
  static ReduceBuckets Of(const StateLayout& layout,
                          std::span<const DType> dtypes, int64_t bucket_bytes);

  std::span<const ReduceBucket> all() const { return buckets_; }
  // The bucket of a trainable parameter.
  size_t BucketOf(ParameterId id) const {
    return bucket_of_[static_cast<size_t>(id.value())];
  }
  // The first element of the gradient of `id` in its bucket, which is direct.
  int64_t BeginOf(ParameterId id) const {
    return begin_of_[static_cast<size_t>(id.value())];
  }

 private:
  void Place(const StateLayout& layout, ReduceBucket& bucket);

  std::vector<ReduceBucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<int64_t> begin_of_;  // By id.
};

struct GradientOptions {
  // Gradients of less than a quarter of this size are packed into messages of
  // at most this size, window by window.
  int64_t bucket_bytes = 25'000'000;
  bool average = false;  // Average over both groups; otherwise sum.
  // Send int8 blocks within the shard group. Requires sharded gradients.
  bool quantized = false;
  bool overlap = true;  // Start does not wait for the reduction.
};

// The groups over which gradients are reduced.
struct GradientGroups {
  collectives::Communicator* shard = nullptr;
  // The ranks that hold the same shards; null: none.
  collectives::Communicator* replicas = nullptr;
};

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
  // `dtypes`, by id, are the types of gradients. Block shard_of[id] of `shards`
  // belongs to parameter `id`; `shards` is null if gradients are whole. All
  // arguments must outlive the reducer; no other collectives run on the groups.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      const StateContext& context, const std::vector<DType>& dtypes,
      const GradientOptions& options, const GradientGroups& groups,
      ShardStore* shards, const std::vector<size_t>& shard_of);

  // Waits for reductions in progress.
  ~GradientReducer();

  // OK if the gradient may be accumulated into. InvalidArgument if the
  // parameter is frozen; FailedPrecondition if gradients are whole and this one
  // was reduced in this step.
  absl::Status CheckOpen(ParameterId id) const;

  // The whole gradient, with the parameter's shape: the sum since its last
  // reduction. Errors as for CheckOpen.
  absl::StatusOr<TensorView> Gradient(ParameterId id);

  // OK if the window can be reduced. Errors as for CheckOpen; InvalidArgument
  // if it has some but not all trainable parameters of a bucket. A whole group
  // of the model is always valid.
  absl::Status CheckWindow(std::span<const ParameterId> window) const;
  // A collective. Starts to reduce the window's trainable parameters. Gradients
  // that were never accessed are zeros. Precondition: CheckWindow.
  absl::Status Start(std::span<const ParameterId> window);

  // A trainable parameter that was not reduced in this step, or was changed
  // after its last reduction; nullopt if there is none.
  std::optional<ParameterId> FirstMissing() const;
  // Sets gradients that were neither accessed nor reduced to zeros.
  absl::Status ZeroMissing();

  // Later work of the device's queue comes after all reductions.
  absl::Status Finish();

  // The sums of the elements that this rank owns (possibly no elements), valid
  // until CloseOwn. The queue waits for the parameter's reduction.
  absl::StatusOr<offload::TypedSpan> OpenOwn(ParameterId id);
  absl::Status CloseOwn(ParameterId id, bool changed);
  // True if the sums are in a tier, where the host may access them with
  // OpenOnHost and CloseOnHost. Precondition of both: the rank owns elements of
  // `id`, and Finish has returned.
  bool in_tier() const { return is_sharded() && shards_->in_tier(); }
  absl::StatusOr<offload::TypedSpan> OpenOnHost(ParameterId id);
  absl::Status CloseOnHost(ParameterId id);
  // OpenOwn(id) or OpenOnHost(id) will be called soon.
  void AnnounceOwn(ParameterId id);

  // Begins the next step: sets all gradients to zeros.
  absl::Status Clear();

  // Aborts the groups that this object created.
  void Abort(std::string_view reason) { wire_->Abort(reason); }

  const ReduceBuckets& buckets() const { return buckets_; }

 private:
  struct InFlight {
    size_t bucket = 0;
    std::optional<PendingReduction> reduction;
    std::optional<collectives::Work> all_reduce;  // Stage 0.
  };

  GradientReducer(const StateContext& context, const std::vector<DType>& dtypes,
                  const GradientOptions& options, const GradientGroups& groups,
                  ShardStore* shards, const std::vector<size_t>& shard_of);

  StateOps& ops() const { return *context_.device.ops; }
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
  absl::Status PackBucket(size_t index);
  absl::Status StartBucket(size_t index);
  absl::Status FinishOldest();
  absl::Status FinishFlights();
  absl::Status AwaitBucket(size_t index);
  absl::Status TakeOwn(size_t index);
  absl::Status AddToShard(const BucketPiece& piece, const std::byte* sums);
  void FreeBucket(size_t index);
  collectives::Buffer OwnBlock(size_t index);

  const StateContext context_;
  const std::vector<DType> dtypes_;
  const GradientGroups groups_;
  const collectives::Reduction reduction_;
  const bool overlap_;
  ShardStore* const shards_;
  const std::vector<size_t> shard_of_;
  // True for one rank with its shards in memory: the shards are the gradients.
  const bool is_in_shards_;
  const ReduceBuckets buckets_;
  BufferPool pool_;                      // Stages 2 and 3.
  std::vector<AccountedMemory> bucket_;  // By bucket.
  std::vector<AccountedMemory> own_;     // By id, for packed buckets.

  std::vector<bool> added_;     // By id: changed since its last reduction.
  std::vector<bool> reduced_;   // By id: reduced in this step.
  std::vector<bool> has_sums_;  // By id: the shard has sums of this step.
  std::unique_ptr<GradientReduction> wire_;
  std::deque<InFlight> in_flight_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENT_REDUCER_H_
