#include "zero3/state/reduce_buckets.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

// Whether a bucket of several gradients has to be packed: with chunks, each
// rank owns a piece of every gradient.
bool IsPacked(const StateLayout& layout) {
  return layout.options().kind == LayoutKind::kChunks && layout.ranks() > 1;
}

bool IsDirect(const StateLayout& layout, const BucketContents& bucket) {
  if (!IsPacked(layout)) return true;
  const auto count = std::count_if(
      bucket.parameters.begin(), bucket.parameters.end(),
      [&](ParameterId id) { return layout.model()[id].elements > 0; });
  return count < 2;
}

}  // namespace

std::vector<BucketContents> BucketsOf(const StateLayout& layout,
                                      std::span<const DType> dtypes,
                                      int64_t bucket_bytes) {
  const ModelParameters& model = layout.model();
  std::vector<BucketContents> buckets;
  int64_t group = 0;  // Of the last bucket.
  bool is_full = true;
  const auto order = model.in_use_order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Parameter& parameter = model[*it];
    if (!parameter.trainable()) continue;
    const DType dtype = dtypes[IndexOf(*it)];
    const int64_t more = layout.GatheredElements(*it);
    const int64_t bytes = more * SizeInBytes(dtype);
    const bool is_alone = IsPacked(layout) && bytes >= (bucket_bytes + 3) / 4;
    if (is_full || is_alone || group != parameter.spec.group ||
        buckets.back().dtype != dtype ||
        buckets.back().bytes() + bytes > bucket_bytes) {
      buckets.push_back({.dtype = dtype});
    }
    buckets.back().parameters.push_back(*it);
    buckets.back().elements += more;
    group = parameter.spec.group;
    is_full = is_alone;
  }
  for (BucketContents& bucket : buckets) {
    bucket.is_direct = IsDirect(layout, bucket);
  }
  return buckets;
}

bool ReduceBucket::IsEven() const {
  return std::adjacent_find(counts.begin(), counts.end(),
                            std::not_equal_to<>()) == counts.end();
}

void ReduceBuckets::Place(const StateLayout& layout, ReduceBucket& bucket) {
  const auto ranks = static_cast<size_t>(layout.ranks());
  bucket.counts.assign(ranks, 0);
  bucket.pieces.assign(ranks, {});
  std::vector<bool> seen(bucket.parameters.size(), false);
  int64_t offset = 0;
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t p = 0; p < seen.size(); ++p) {
      const ParameterId id = bucket.parameters[p];
      const Extent extent =
          layout.ExtentOf(topology::Rank(static_cast<int64_t>(r)), id);
      if (extent.slot == 0) continue;
      bucket.pieces[r].push_back(
          {id, extent.begin, extent.size(), extent.slot, offset});
      if (!seen[p]) begin_of_[IndexOf(id)] = offset;
      seen[p] = true;
      bucket.counts[r] += extent.slot;
      offset += extent.slot;
    }
  }
}

ReduceBuckets ReduceBuckets::Of(const StateLayout& layout,
                                std::span<const DType> dtypes,
                                int64_t bucket_bytes) {
  ReduceBuckets result;
  const auto count = static_cast<size_t>(layout.model().count());
  result.bucket_of_.resize(count);
  result.begin_of_.resize(count);
  for (BucketContents& contents : BucketsOf(layout, dtypes, bucket_bytes)) {
    for (ParameterId id : contents.parameters) {
      result.bucket_of_[IndexOf(id)] = result.buckets_.size();
    }
    result.buckets_.push_back({std::move(contents), {}, {}});
    result.Place(layout, result.buckets_.back());
  }
  return result;
}

}  // namespace tessera::zero3
