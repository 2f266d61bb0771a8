#include "zero3/estimate/timeline/live_timeline.h"

#include "base/dtype/dtype.h"

namespace tessera::zero3 {

LiveTimeline::LiveTimeline(const LiveTimelineOptions& options,
                           const StateLayout& layout, const ReusePlan& plan,
                           StagingTimeline& staging, BufferMeter& meter)
    : options_(options),
      layout_(layout),
      plan_(plan),
      staging_(staging),
      meter_(meter),
      live_(static_cast<size_t>(layout.model().count())) {
  for (const ReusePlan::Window& window : plan.windows) {
    for (ParameterId id : window.gather) LiveOf(id).is_gathered = true;
  }
}

int64_t LiveTimeline::BytesOf(ParameterId id) const {
  return layout_.GatheredElements(id) *
         SizeInBytes(layout_.model()[id].dtype());
}

void LiveTimeline::Start(ParameterId id) {
  Live& live = LiveOf(id);
  if (live.is_live) return;
  live.is_live = live.is_on_its_way = true;
  live_elements_ += layout_.GatheredElements(id);
  meter_.Hold(Purpose::kGatherBuffers, BytesOf(id), /*of_values=*/true);
  staging_.Open(id);
}

void LiveTimeline::Finish(ParameterId id) {
  if (!LiveOf(id).is_on_its_way) return;
  LiveOf(id).is_on_its_way = false;
  staging_.Close(id);
}

void LiveTimeline::AcquireAlone(std::span<const ParameterId> parameters) {
  for (ParameterId id : parameters) {
    if (LiveOf(id).is_gathered) Start(id);
  }
  for (ParameterId id : parameters) Finish(id);
}

void LiveTimeline::Acquire(size_t window,
                           std::span<const ParameterId> parameters) {
  AcquireAlone(parameters);
  GatherAhead(window);
}

void LiveTimeline::GatherAhead(size_t window) {
  for (int64_t ahead = 1; ahead <= options_.prefetch_windows; ++ahead) {
    const size_t next = window + static_cast<size_t>(ahead);
    if (next >= plan_.windows.size()) return;
    for (ParameterId id : plan_.windows[next].gather) {
      if (LiveOf(id).is_live) continue;
      if (layout_.GatheredElements(id) > options_.max_live - live_elements_) {
        return;
      }
      Start(id);
    }
  }
}

void LiveTimeline::Release(size_t window) {
  for (ParameterId id : plan_.windows[window].release) Drop(id);
}

void LiveTimeline::ReleaseAlone(std::span<const ParameterId> parameters) {
  for (ParameterId id : parameters) Drop(id);
}

void LiveTimeline::Drop(ParameterId id) {
  if (!LiveOf(id).is_live) return;
  Finish(id);
  LiveOf(id).is_live = false;
  live_elements_ -= layout_.GatheredElements(id);
  meter_.Hold(Purpose::kGatherBuffers, -BytesOf(id), /*of_values=*/true);
}

}  // namespace tessera::zero3
