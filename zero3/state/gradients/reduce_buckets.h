// ReduceBuckets: which gradients are reduced in one message, and where each
// lies in it.
//
//   const ReduceBuckets buckets = ReduceBuckets::Of(layout, dtypes,
//   25'000'000); for (const ReduceBucket& bucket : buckets.all()) {
//     // a reduce_scatter of bucket.counts elements
//   }
//
// Backward passes make gradients in the reverse order of use, so buckets are
// filled in that order. Within one, all that is rank 0's comes first, then what
// is rank 1's, and so on: what a reduce_scatter leaves a rank is what the
// layout says is its own, slot after slot.
#ifndef TESSERA_ZERO3_STATE_GRADIENTS_REDUCE_BUCKETS_H_
#define TESSERA_ZERO3_STATE_GRADIENTS_REDUCE_BUCKETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

// A run of elements of a parameter, and where it lies.
struct BucketPiece {
  ParameterId parameter;
  int64_t begin = 0;  // In the parameter.
  int64_t size = 0;
  int64_t slot = 0;    // With the padding behind it.
  int64_t offset = 0;  // In the bucket.

  friend bool operator==(const BucketPiece&, const BucketPiece&) = default;
};

struct ReduceBucket {
  std::vector<ParameterId> parameters;
  DType dtype = DType::kF32;
  // Of each rank; all pieces of a rank lie side by side, in its order.
  std::vector<int64_t> counts;
  std::vector<std::vector<BucketPiece>> pieces;
  int64_t elements = 0;

  // Whether all ranks have as many.
  bool IsEven() const;
};

class ReduceBuckets {
 public:
  // Of all trainable parameters. `dtypes`, by id, are those of the gradients; a
  // bucket has one. It is full when one more gradient would make it larger than
  // `bucket_bytes`.
  static ReduceBuckets Of(const StateLayout& layout,
                          std::span<const DType> dtypes, int64_t bucket_bytes);

  std::span<const ReduceBucket> all() const { return buckets_; }
  // The bucket of a trainable parameter.
  size_t BucketOf(ParameterId id) const {
    return bucket_of_[static_cast<size_t>(id.value())];
  }

 private:
  std::vector<ReduceBucket> buckets_;
  std::vector<size_t> bucket_of_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENTS_REDUCE_BUCKETS_H_
