// GradientTimeline: the buffers of gradients on their way to their owners, by
// the rule of zero3/state/gradients/gradient_memory.h and gradient_reducer.h.
//
//   GradientTimeline gradients(options, layout, staging, meter);
//   gradients.Ask(id);     // a backward pass wants to add to it
//   gradients.Ready(id);   // nothing more will be added
//   gradients.Finish();
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_GRADIENT_TIMELINE_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_GRADIENT_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "topology/rank.h"
#include "zero3/estimate/timeline/buffer_meter.h"
#include "zero3/estimate/timeline/staging_timeline.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/gradients/reduce_buckets.h"

namespace tessera::zero3 {

struct GradientTimelineOptions {
  std::vector<DType> dtypes = {};  // By id.
  int64_t bucket_bytes = 0;
  topology::Rank rank = {};
  bool is_kept = false;       // Whole for the whole step: stages 0 and 1.
  bool is_in_shards = false;  // Alone, with shards in memory.
  bool overlap = true;
};

class GradientTimeline {
 public:
  // `staging` is that of the shards. All outlive this.
  GradientTimeline(const GradientTimelineOptions& options,
                   const StateLayout& layout, StagingTimeline& staging,
                   BufferMeter& meter);

  // Precondition of both: the parameter is trained.
  void Ask(ParameterId id);
  void Ready(ParameterId id);
  // Everything is reduced.
  void Finish();

 private:
  void BeginRound();
  void HoldBucket(size_t index);
  void StartBucket(size_t index);
  void FinishFlight();
  void Await(size_t index) {
    if (in_flight_ == index) FinishFlight();
  }
  int64_t OwnBytes(ParameterId id) const;

  const GradientTimelineOptions options_;
  const StateLayout& layout_;
  StagingTimeline& staging_;
  BufferMeter& meter_;
  const std::vector<BucketContents> buckets_;
  std::vector<size_t> bucket_of_;  // By id.
  std::vector<bool> has_own_;      // By id: memory of its own.
  std::vector<bool> has_memory_;   // By bucket.
  std::vector<size_t> missing_;    // By bucket.
  size_t next_bucket_ = 0;
  std::optional<size_t> in_flight_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_GRADIENT_TIMELINE_H_
