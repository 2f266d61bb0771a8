#include "zero3/state/reduce_buckets.h"

#include <algorithm>

namespace tessera::zero3 {
namespace {

// Returns true if a bucket of several gradients must be packed: with chunks,
// each rank owns a piece of every gradient.
bool IsPacked(const StateLayout& layout) {
  return layout.options().kind == LayoutKind::kChunks && layout.ranks() > 1;
}

bool IsDirect(const StateLayout& layout, const ReduceBucket& bucket) {
  if (!IsPacked(layout)) return true;
  const auto count = std::count_if(
      bucket.parameters.begin(), bucket.parameters.end(),
      [&](ParameterId id) { return layout.model()[id].elements > 0; });
  return count < 2;
}

}  // namespace

ReduceBuckets ReduceBuckets::Of(const StateLayout& layout,
                                std::span<const DType> dtypes,
                                int64_t bucket_bytes) {
  ReduceBuckets result;
  result.places_ = ById<Place>(layout.model().count());
  result.Assign(layout, dtypes, bucket_bytes);
  for (ReduceBucket& bucket : result.buckets_) {
    bucket.is_direct = IsDirect(layout, bucket);
    result.PlacePieces(layout, bucket);
  }
  return result;
}

void ReduceBuckets::Assign(const StateLayout& layout,
                           std::span<const DType> dtypes,
                           int64_t bucket_bytes) {
  const ModelParameters& model = layout.model();
  int64_t group = 0;  // Of the last bucket.
  bool is_full = true;
  const auto order = model.in_use_order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const ModelParameter& parameter = model[*it];
    if (!parameter.trainable()) continue;
    const DType dtype = dtypes[IndexOf(*it)];
    const int64_t more = layout.GatheredElements(*it);
    const int64_t bytes = more * SizeInBytes(dtype);
    const bool is_alone = IsPacked(layout) && bytes >= (bucket_bytes + 3) / 4;
    if (is_full || is_alone || group != parameter.spec.group ||
        buckets_.back().dtype != dtype ||
        buckets_.back().bytes() + bytes > bucket_bytes) {
      buckets_.push_back({.dtype = dtype});
    }
    places_[*it].bucket = buckets_.size() - 1;
    buckets_.back().parameters.push_back(*it);
    buckets_.back().elements += more;
    group = parameter.spec.group;
    is_full = is_alone;
  }
}

void ReduceBuckets::PlacePieces(const StateLayout& layout,
                                ReduceBucket& bucket) {
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
      if (!seen[p]) places_[id].begin = offset;
      seen[p] = true;
      bucket.counts[r] += extent.slot;
      offset += extent.slot;
    }
  }
}

}  // namespace tessera::zero3
