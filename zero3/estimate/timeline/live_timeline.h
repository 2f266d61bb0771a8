// LiveTimeline: the buffers of gathered parameters, by the rule of
// zero3/state/values/live_parameters.h.
//
//   LiveTimeline live(options, layout, plan, staging, meter);
//   live.Acquire(window, order.window(window));
//   live.Release(window);
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_LIVE_TIMELINE_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_LIVE_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zero3/estimate/timeline/buffer_meter.h"
#include "zero3/estimate/timeline/staging_timeline.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/use/reuse_plan.h"

namespace tessera::zero3 {

struct LiveTimelineOptions {
  int64_t max_live = 0;  // Elements.
  int64_t prefetch_windows = 1;
};

class LiveTimeline {
 public:
  // `staging` is that of the shards. All outlive this.
  LiveTimeline(const LiveTimelineOptions& options, const StateLayout& layout,
               const ReusePlan& plan, StagingTimeline& staging,
               BufferMeter& meter);

  // Window number `window` of the plan uses `parameters`.
  void Acquire(size_t window, std::span<const ParameterId> parameters);
  void Release(size_t window);
  // The same in the first step, which has no plan yet.
  void AcquireAlone(std::span<const ParameterId> parameters);
  void ReleaseAlone(std::span<const ParameterId> parameters);

 private:
  struct Live {
    bool is_gathered = false;  // By the plan, at any time.
    bool is_live = false;
    bool is_on_its_way = false;
  };

  Live& LiveOf(ParameterId id) {
    return live_[static_cast<size_t>(id.value())];
  }
  int64_t BytesOf(ParameterId id) const;
  void Start(ParameterId id);
  void Finish(ParameterId id);
  void Drop(ParameterId id);
  void GatherAhead(size_t window);

  const LiveTimelineOptions options_;
  const StateLayout& layout_;
  const ReusePlan& plan_;
  StagingTimeline& staging_;
  BufferMeter& meter_;
  std::vector<Live> live_;  // By id.
  int64_t live_elements_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_LIVE_TIMELINE_H_
