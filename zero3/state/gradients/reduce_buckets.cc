#include "zero3/state/gradients/reduce_buckets.h"

#include <algorithm>

namespace tessera::zero3 {
namespace {

void Place(const StateLayout& layout, ReduceBucket& bucket) {
  const auto ranks = static_cast<size_t>(layout.ranks());
  bucket.counts.assign(ranks, 0);
  bucket.pieces.assign(ranks, {});
  for (size_t r = 0; r < ranks; ++r) {
    for (ParameterId id : bucket.parameters) {
      const Extent extent =
          layout.ExtentOf(topology::Rank(static_cast<int64_t>(r)), id);
      if (extent.slot == 0) continue;
      bucket.pieces[r].push_back({id, extent.begin, extent.size(), extent.slot,
                                  bucket.elements + bucket.counts[r]});
      bucket.counts[r] += extent.slot;
    }
    bucket.elements += bucket.counts[r];
  }
}

}  // namespace

bool ReduceBucket::IsEven() const {
  return std::adjacent_find(counts.begin(), counts.end(),
                            std::not_equal_to<>()) == counts.end();
}

ReduceBuckets ReduceBuckets::Of(const StateLayout& layout,
                                std::span<const DType> dtypes,
                                int64_t bucket_bytes) {
  const ModelParameters& model = layout.model();
  ReduceBuckets result;
  result.bucket_of_.resize(static_cast<size_t>(model.count()));
  int64_t bytes = 0;
  const auto order = model.in_use_order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const auto index = static_cast<size_t>(it->value());
    if (!model[*it].trainable()) continue;
    const int64_t more = model[*it].elements * SizeInBytes(dtypes[index]);
    if (result.buckets_.empty() ||
        result.buckets_.back().dtype != dtypes[index] ||
        bytes + more > bucket_bytes) {
      result.buckets_.push_back({.parameters = {},
                                 .dtype = dtypes[index],
                                 .counts = {},
                                 .pieces = {}});
      bytes = 0;
    }
    bytes += more;
    result.buckets_.back().parameters.push_back(*it);
    result.bucket_of_[index] = result.buckets_.size() - 1;
  }
  for (ReduceBucket& bucket : result.buckets_) Place(layout, bucket);
  return result;
}

}  // namespace tessera::zero3
