// ReduceBuckets: assigns gradients to messages (buckets), and places within
// them.
//
//   const ReduceBuckets buckets =
//       ReduceBuckets::Of(layout, dtypes, 25'000'000);
//   for (const ReduceBucket& bucket : buckets.all()) {
//     // a reduce_scatter of bucket.counts elements
//   }
//
// A bucket has gradients of one group of the model (a layer) and of one type,
// in the reverse order of use. It begins with the elements of rank 0, then come
// those of rank 1, and so on, so that a reduce_scatter gives each rank the
// slots that the layout assigns to it. If each gradient is contiguous
// nevertheless (all layouts but chunks, and a bucket with a single gradient)
// the bucket is direct: backward passes may write into it. For this reason,
// with chunks, a gradient of a quarter of `bucket_bytes` or more has its own
// bucket, and smaller ones are packed.
#ifndef TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_
#define TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

// A range of elements of a parameter, and its place in a bucket.
struct BucketPiece {
  ParameterId parameter;
  int64_t begin = 0;  // In the parameter.
  int64_t size = 0;
  int64_t slot = 0;    // Elements with padding.
  int64_t offset = 0;  // In the bucket.

  friend bool operator==(const BucketPiece&, const BucketPiece&) = default;
};

// The gradients of a bucket, without their places.
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

  // True if all counts are equal.
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

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_
