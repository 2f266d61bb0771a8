// ReduceBuckets: which gradients are reduced in one message, and where each
// lies in it.
//
//   const ReduceBuckets buckets =
//       ReduceBuckets::Of(layout, dtypes, 25'000'000);
//   for (const ReduceBucket& bucket : buckets.all()) {
//     // a reduce_scatter of bucket.counts elements
//   }
//
// A bucket has gradients of one group of the model (a layer) and of one type,
// in the reverse order of use. Within it, all that is rank 0's comes first,
// then what is rank 1's, and so on: what a reduce_scatter leaves a rank is what
// the layout says is its own, slot after slot. If each gradient is nevertheless
// in one piece (all layouts but chunks, and a bucket of a single gradient) the
// bucket is direct: backward passes may write straight into it. With chunks,
// therefore, a gradient of a quarter of `bucket_bytes` or more has a bucket of
// its own, and smaller ones are packed.
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

// What is in a bucket, without the places.
struct BucketContents {
  std::vector<ParameterId> parameters = {};
  DType dtype = DType::kF32;
  int64_t elements = 0;  // With padding.
  bool is_direct = false;

  int64_t bytes() const { return elements * SizeInBytes(dtype); }
};

// Of all trainable parameters, the last group first. `dtypes`, by id, are those
// of the gradients. A bucket is full when one more gradient would make it
// larger, with padding, than `bucket_bytes`. O(parameters), whatever the ranks.
std::vector<BucketContents> BucketsOf(const StateLayout& layout,
                                      std::span<const DType> dtypes,
                                      int64_t bucket_bytes);

struct ReduceBucket : BucketContents {
  // Of each rank; all pieces of a rank lie side by side, in its order.
  std::vector<int64_t> counts;
  std::vector<std::vector<BucketPiece>> pieces;

  // Whether all ranks have as many.
  bool IsEven() const;
};

class ReduceBuckets {
 public:
  // As BucketsOf.
  static ReduceBuckets Of(const StateLayout& layout,
                          std::span<const DType> dtypes, int64_t bucket_bytes);

  std::span<const ReduceBucket> all() const { return buckets_; }
  // The bucket of a trainable parameter.
  size_t BucketOf(ParameterId id) const {
    return bucket_of_[static_cast<size_t>(id.value())];
  }
  // Where the gradient of `id` begins in its bucket, which is direct.
  int64_t BeginOf(ParameterId id) const {
    return begin_of_[static_cast<size_t>(id.value())];
  }

 private:
  void Place(const StateLayout& layout, ReduceBucket& bucket);

  std::vector<ReduceBucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<int64_t> begin_of_;  // By id.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENTS_REDUCE_BUCKETS_H_
