// BucketPlan: which tensors are sent together.
//
//   BucketPlan plan = PlanBuckets(tensors, order, 25 << 20);
//   plan.buckets[0].members;   // tensors, in the order of their places
//   plan.place[7].offset       // where tensor 7 lies in its bucket
//
// Pure arithmetic: the same on every rank.
#ifndef TESSERA_COLLECTIVES_BUCKETS_BUCKET_PLAN_H_
#define TESSERA_COLLECTIVES_BUCKETS_BUCKET_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"

namespace tessera::collectives {

struct BucketTensor {
  int64_t count = 0;
  DType dtype = DType::kF32;
};

struct BucketPlan {
  struct Bucket {
    DType dtype = DType::kF32;
    int64_t count = 0;             // Elements, padding included.
    std::vector<int64_t> members;  // Tensors, by place.
  };
  struct Place {
    int64_t bucket = 0;
    int64_t offset = 0;  // Elements from the bucket's start.
  };

  std::vector<Bucket> buckets;  // In the order in which they become whole.
  std::vector<Place> place;     // Of each tensor.
};

// Fills buckets with the tensors in `order` (a permutation of their indices):
// each of one type and of at most `bucket_bytes`, unless a single tensor is
// larger, which then has a bucket of its own. Every tensor starts at a multiple
// of 64 bytes. Buckets are ordered by their last member in `order`: when
// tensors become ready in that order, buckets become whole in theirs.
BucketPlan PlanBuckets(std::span<const BucketTensor> tensors,
                       std::span<const int64_t> order, int64_t bucket_bytes);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BUCKETS_BUCKET_PLAN_H_
