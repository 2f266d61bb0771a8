#include "collectives/buckets/bucket_plan.h"

#include <algorithm>
#include <map>

namespace tessera::collectives {
namespace {

constexpr int64_t kAlignmentBytes = 64;

int64_t Padded(const BucketTensor& tensor) {
  const int64_t step = kAlignmentBytes / SizeInBytes(tensor.dtype);
  return (tensor.count + step - 1) / step * step;
}

// The buckets in the order of their last members.
void SortByCompletion(std::span<const int64_t> order, BucketPlan& plan) {
  std::vector<int64_t> when(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    when[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  const auto completed = [&](const BucketPlan::Bucket& bucket) {
    return when[static_cast<size_t>(bucket.members.back())];
  };
  std::sort(plan.buckets.begin(), plan.buckets.end(),
            [&](const auto& a, const auto& b) {
              return completed(a) < completed(b);
            });
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    for (int64_t member : plan.buckets[b].members) {
      plan.place[static_cast<size_t>(member)].bucket = static_cast<int64_t>(b);
    }
  }
}

}  // namespace

BucketPlan PlanBuckets(std::span<const BucketTensor> tensors,
                       std::span<const int64_t> order, int64_t bucket_bytes) {
  BucketPlan plan;
  plan.place.resize(tensors.size());
  std::map<DType, size_t> open;  // The bucket of each type that still fills.
  for (int64_t index : order) {
    const BucketTensor& tensor = tensors[static_cast<size_t>(index)];
    const int64_t size = SizeInBytes(tensor.dtype);
    const int64_t padded = Padded(tensor);
    auto bucket = open.find(tensor.dtype);
    if (bucket == open.end() ||
        (plan.buckets[bucket->second].count + padded) * size > bucket_bytes) {
      bucket = open.insert_or_assign(tensor.dtype, plan.buckets.size()).first;
      plan.buckets.push_back({tensor.dtype, 0, {}});
    }
    BucketPlan::Bucket& target = plan.buckets[bucket->second];
    plan.place[static_cast<size_t>(index)].offset = target.count;
    target.members.push_back(index);
    target.count += padded;
  }
  SortByCompletion(order, plan);
  return plan;
}

}  // namespace tessera::collectives
