#include "zero3/estimate/timeline/gradient_timeline.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

}  // namespace

GradientTimeline::GradientTimeline(const GradientTimelineOptions& options,
                                   const StateLayout& layout,
                                   StagingTimeline& staging, BufferMeter& meter)
    : options_(options),
      layout_(layout),
      staging_(staging),
      meter_(meter),
      buckets_(BucketsOf(layout, options.dtypes, options.bucket_bytes)),
      bucket_of_(options.dtypes.size()),
      has_own_(options.dtypes.size(), false),
      has_memory_(buckets_.size(), false) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (ParameterId id : buckets_[b].parameters) bucket_of_[IndexOf(id)] = b;
  }
  BeginRound();
}

void GradientTimeline::BeginRound() {
  missing_.clear();
  for (const BucketContents& bucket : buckets_) {
    missing_.push_back(bucket.parameters.size());
  }
  next_bucket_ = 0;
}

int64_t GradientTimeline::OwnBytes(ParameterId id) const {
  return layout_.GatheredElements(id) *
         SizeInBytes(options_.dtypes[IndexOf(id)]);
}

void GradientTimeline::HoldBucket(size_t index) {
  const bool is_state = options_.is_kept && buckets_[index].is_direct;
  if (is_state || has_memory_[index]) return;
  has_memory_[index] = true;
  meter_.Hold(Purpose::kReduceBuckets, buckets_[index].bytes());
}

void GradientTimeline::Ask(ParameterId id) {
  if (options_.is_kept || options_.is_in_shards) return;
  const size_t index = bucket_of_[IndexOf(id)];
  Await(index);
  if (buckets_[index].is_direct) return HoldBucket(index);
  if (has_own_[IndexOf(id)] || OwnBytes(id) == 0) return;
  has_own_[IndexOf(id)] = true;
  meter_.Hold(Purpose::kReduceBuckets, OwnBytes(id));
}

void GradientTimeline::Ready(ParameterId id) {
  if (options_.is_in_shards) return;
  const size_t index = bucket_of_[IndexOf(id)];
  Await(index);
  if (has_own_[IndexOf(id)]) {
    HoldBucket(index);
    has_own_[IndexOf(id)] = false;
    meter_.Hold(Purpose::kReduceBuckets, -OwnBytes(id));
  }
  --missing_[index];
  while (next_bucket_ < missing_.size() && missing_[next_bucket_] == 0) {
    StartBucket(next_bucket_++);
  }
  if (next_bucket_ == missing_.size()) BeginRound();
}

void GradientTimeline::StartBucket(size_t index) {
  HoldBucket(index);
  FinishFlight();
  in_flight_ = index;
  if (!options_.overlap) FinishFlight();
}

void GradientTimeline::FinishFlight() {
  if (!in_flight_) return;
  const size_t index = *in_flight_;
  in_flight_.reset();
  const BucketContents& bucket = buckets_[index];
  if (!options_.is_kept) {
    for (ParameterId id : bucket.parameters) {
      if (layout_.ExtentOf(options_.rank, id).size() == 0) continue;
      staging_.Open(id);
      staging_.Close(id);
    }
  }
  if (!has_memory_[index]) return;
  has_memory_[index] = false;
  meter_.Hold(Purpose::kReduceBuckets, -bucket.bytes());
}

void GradientTimeline::Finish() { FinishFlight(); }

}  // namespace tessera::zero3
