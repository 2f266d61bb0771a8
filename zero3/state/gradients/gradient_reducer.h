// GradientReducer: gradients that backward passes add up, summed over ranks in
// buckets as they become ready, and the part of them that this rank owns.
//
//   TESSERA_ASSIGN_OR_RETURN(TensorView gradient, reducer->Gradient(id));
//   ... a backward pass adds to it ...
//   TESSERA_RETURN_IF_ERROR(reducer->MarkReady(id));
//   TESSERA_RETURN_IF_ERROR(reducer->Finish());
//   TESSERA_ASSIGN_OR_RETURN(auto own, reducer->OpenOwn(id));
//
// Where gradients are whole (stages 0 and 1) they are model state, and reduced
// once a step: where they are at stage 0, and wherever their bucket is direct.
// Where they are sharded (2 and 3) a gradient has memory from when it is first
// asked for until its bucket is reduced, and the sums are added to the rank's
// shard: as often in a step as all gradients were ready. So backward passes
// that go through the parameters in the reverse order of use have two buckets
// at a time, one that is filled and one on its way (one without `overlap`), and
// what a pass has asked for and not made ready; one that asks for all gradients
// before it makes any ready has all. A rank that is alone with its shards in
// memory writes into these. gradient_memory.h has the details.
//
// Buckets are sent in one fixed order, each as soon as it is whole, so ranks
// may make gradients ready in different orders. One thread at a time.
#ifndef TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_
#define TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/state/typed_span.h"
#include "zero3/state/gradients/gradient_memory.h"
#include "zero3/state/gradients/reduce_buckets.h"
#include "zero3/state/shards/shard_store.h"
#include "zero3/state/shards/state_seat.h"

namespace tessera::zero3 {

struct GradientOptions {
  int64_t bucket_bytes = 25'000'000;
  bool average = false;  // Over the ranks of both groups; otherwise sums.
  bool overlap = true;   // A bucket is on its way while the next is filled.
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
  // shard_of[id] is that of parameter `id`, is null where gradients are whole.
  // All of these outlive the reducer; no other collectives run on the groups.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      const StateSeat& seat, const std::vector<DType>& dtypes,
      const GradientOptions& options, const GradientGroups& groups,
      ShardStore* shards, const std::vector<size_t>& shard_of);

  // Waits for what was started.
  ~GradientReducer();

  // Whether more may be added to a gradient. InvalidArgument where the
  // parameter is frozen; FailedPrecondition where it was made ready, and not
  // all others of this round.
  absl::Status CheckOpen(ParameterId id) const;

  // The whole gradient, with the parameter's shape: zeros, and what was added
  // since. Refused as by CheckOpen.
  absl::StatusOr<TensorView> Gradient(ParameterId id);

  // Nothing more is added to it. Without a call of Gradient before, zeros.
  absl::Status MarkReady(ParameterId id);

  // A parameter that is not ready in this round, or in this step.
  std::optional<ParameterId> FirstMissing() const;

  // Returns when every gradient is reduced. Precondition: none is missing.
  absl::Status Finish();

  // The sums that this rank owns, until CloseOwn: of its extent's elements, or
  // none where it has no part. After Finish.
  absl::StatusOr<offload::ConstTypedSpan> OpenOwn(ParameterId id);
  absl::Status CloseOwn(ParameterId id);
  // Soon to be opened.
  void AnnounceOwn(ParameterId id);

  // Begins the next step: all gradients are zeros.
  void Clear();

  const ReduceBuckets& buckets() const { return buckets_; }

 private:
  struct InFlight {
    size_t bucket = 0;
    std::span<std::byte> memory;
    std::optional<collectives::Work> work;
  };

  GradientReducer(const StateSeat& seat, const std::vector<DType>& dtypes,
                  const GradientOptions& options, const GradientGroups& groups,
                  ShardStore* shards, const std::vector<size_t>& shard_of);

  bool is_sharded() const { return shards_ != nullptr; }
  DType DTypeOf(ParameterId id) const {
    return dtypes_[static_cast<size_t>(id.value())];
  }
  absl::StatusOr<std::span<std::byte>> WholeOf(ParameterId id);
  void BeginRound();
  absl::Status StartWholeBuckets();
  absl::Status StartBucket(size_t index);
  absl::Status AwaitBucket(size_t index);
  absl::Status FinishFlight();
  collectives::Buffer OwnBlock(const InFlight& flight) const;
  absl::Status TakeOwn(size_t index, std::span<const std::byte> memory);
  absl::Status AddToShard(const BucketPiece& piece, const std::byte* sums);

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
  std::unique_ptr<GradientMemory> memory_;

  std::vector<bool> ready_;      // In this round.
  std::vector<bool> reduced_;    // In this step.
  std::vector<bool> has_sums_;   // The shard, of this step.
  std::vector<size_t> missing_;  // Gradients, by bucket.
  size_t next_bucket_ = 0;       // The first that was not started.
  bool round_is_open_ = false;   // Something is ready.
  std::optional<InFlight> in_flight_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_REDUCER_H_
