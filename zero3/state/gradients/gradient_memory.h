// GradientMemory: where backward passes write gradients, and where buckets of
// them are reduced.
//
//   TESSERA_ASSIGN_OR_RETURN(auto bytes, memory->GradientOf(id));  // zeros
//   ... a backward pass adds to it ...
//   TESSERA_RETURN_IF_ERROR(memory->Seal(id));        // nothing more is added
//   TESSERA_ASSIGN_OR_RETURN(auto bucket, memory->OpenBucket(index));
//   ... reduced, and what is wanted taken out ...
//   memory->CloseBucket(index);
//
// Gradients that are kept (stages 0 and 1) are there from the beginning, as
// model state. Others come when they are first asked for, as buffers, and go
// with their bucket. In a direct bucket (ReduceBucket::is_direct) gradients lie
// where they are reduced, and nothing is copied. The gradients of another
// bucket have memory of their own and are copied: those that are kept when the
// bucket is opened, others when they are sealed, and their own memory goes.
//
// One thread at a time.
#ifndef TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_MEMORY_H_
#define TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_MEMORY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "zero3/state/gradients/reduce_buckets.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/state_seat.h"

namespace tessera::zero3 {

class GradientMemory {
 public:
  // `buckets` and `group`, on which buckets are reduced, outlive this.
  // ResourceExhausted where there is no room for what is kept.
  static absl::StatusOr<std::unique_ptr<GradientMemory>> Create(
      const StateSeat& seat, const ReduceBuckets& buckets,
      collectives::Communicator& group, bool is_kept);

  // All elements, the padding behind them too: zeros at first.
  absl::StatusOr<std::span<std::byte>> GradientOf(ParameterId id);
  absl::Status Seal(ParameterId id);

  // Every gradient in its place, padding and those never asked for as zeros.
  // Precondition: all of the bucket are sealed.
  absl::StatusOr<std::span<std::byte>> OpenBucket(size_t index);
  void CloseBucket(size_t index);

  // Sets what is kept to zeros.
  void Clear();

 private:
  GradientMemory(const StateSeat& seat, const ReduceBuckets& buckets,
                 collectives::Communicator& group, bool is_kept);

  const ReduceBucket& BucketOf(ParameterId id) const {
    return buckets_.all()[buckets_.BucketOf(id)];
  }
  AccountedMemory& OwnOf(ParameterId id) {
    return own_[static_cast<size_t>(id.value())];
  }
  absl::Status AllocateKept();
  absl::Status AllocateOwn(ParameterId id);
  absl::Status AllocateBucket(size_t index);
  void CopyToBucket(ParameterId id);

  const StateSeat seat_;
  const ReduceBuckets& buckets_;
  collectives::Communicator& group_;
  const bool is_kept_;
  std::vector<AccountedMemory> bucket_;  // By bucket.
  std::vector<AccountedMemory> own_;     // By id; of buckets not direct.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENTS_GRADIENT_MEMORY_H_
