// ReduceBuckets: the messages in which gradients are reduced.
#ifndef TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_
#define TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

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

struct ReduceBucket {
  std::vector<ParameterId> parameters = {};
  DType dtype = DType::kF32;
  int64_t elements = 0;  // Including padding.
  bool is_direct = false;
  // By rank: elements and pieces. The pieces of a rank are contiguous.
  std::vector<int64_t> counts = {};
  std::vector<std::vector<BucketPiece>> pieces = {};

  int64_t bytes() const { return elements * SizeInBytes(dtype); }
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
  // The buckets of all trainable parameters, last group first. `dtypes`, by id,
  // are the types of gradients. A bucket is full if one more gradient would
  // make it larger than `bucket_bytes`, with padding.
  static ReduceBuckets Of(const StateLayout& layout,
                          std::span<const DType> dtypes, int64_t bucket_bytes);

  std::span<const ReduceBucket> all() const { return buckets_; }
  // The bucket of a trainable parameter.
  size_t BucketOf(ParameterId id) const { return places_[id].bucket; }
  // The first element of the gradient of `id` in its bucket, which is direct.
  int64_t BeginOf(ParameterId id) const { return places_[id].begin; }

 private:
  struct Place {
    size_t bucket = 0;
    int64_t begin = 0;
  };

  void Assign(const StateLayout& layout, std::span<const DType> dtypes,
              int64_t bucket_bytes);
  void PlacePieces(const StateLayout& layout, ReduceBucket& bucket);

  std::vector<ReduceBucket> buckets_;
  ById<Place> places_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_REDUCE_BUCKETS_H_
