#include "zero3/state/values/live_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/state/values/gather_operation.h"

namespace tessera::zero3 {

LiveParameters::LiveParameters(const StateSeat& seat,
                               const LiveOptions& options,
                               collectives::Communicator& group,
                               UseGuard& guard, ShardStore& shards,
                               const std::vector<size_t>& shard_of)
    : seat_(seat),
      options_(options),
      group_(group),
      guard_(guard),
      shards_(shards),
      shard_of_(shard_of),
      live_(static_cast<size_t>(seat.model().count())) {}

LiveParameters::~LiveParameters() {
  for (Live& live : live_) {
    if (live.work) live.work->Wait().IgnoreError();
  }
}

absl::Status LiveParameters::PlanWhenKnown() {
  const UseOrder* const order = guard_.order();
  if (plan_ || order == nullptr) return absl::OkStatus();
  std::vector<int64_t> sizes(live_.size());
  for (const Parameter& parameter : seat_.model().all()) {
    if (ShardOf(parameter.id) == kNoShard) continue;
    sizes[static_cast<size_t>(parameter.id.value())] =
        seat_.layout.GatheredElements(parameter.id);
  }
  TESSERA_ASSIGN_OR_RETURN(plan_, PlanReuse(*order, sizes, options_.reuse));
  return absl::OkStatus();
}

absl::Status LiveParameters::Acquire(std::span<const ParameterId> window) {
  if (has_window_) {
    return absl::FailedPreconditionError(
        "a window of parameters is still acquired: release it first");
  }
  const size_t position = guard_.position();
  TESSERA_RETURN_IF_ERROR(guard_.Use(window));
  TESSERA_RETURN_IF_ERROR(PlanWhenKnown());
  has_window_ = true;
  for (ParameterId id : window) {
    if (ShardOf(id) == kNoShard) continue;
    TESSERA_RETURN_IF_ERROR(StartGather(id));
    LiveOf(id).is_acquired = true;
  }
  for (ParameterId id : window) {
    if (ShardOf(id) == kNoShard) continue;
    TESSERA_RETURN_IF_ERROR(FinishGather(id));
  }
  return GatherAhead(position);
}

absl::Status LiveParameters::GatherAhead(size_t window) {
  if (!plan_) return absl::OkStatus();
  bool gathers = true;
  int64_t announced = 0;
  for (size_t next = window + 1; next < plan_->windows.size(); ++next) {
    const auto ahead = static_cast<int64_t>(next - window);
    gathers = gathers && ahead <= options_.prefetch_windows;
    if (!gathers && options_.prefetch_shards == 0) break;
    for (ParameterId id : plan_->windows[next].gather) {
      if (LiveOf(id).is_live) continue;
      gathers = gathers && seat_.layout.GatheredElements(id) <=
                               options_.reuse.max_live - live_elements_;
      if (gathers) {
        TESSERA_RETURN_IF_ERROR(StartGather(id));
        continue;
      }
      // From a tier a shard comes first to memory, then to the others.
      if (announced++ == options_.prefetch_shards) return absl::OkStatus();
      shards_.Announce(ShardOf(id));
    }
  }
  return absl::OkStatus();
}

absl::Status LiveParameters::StartGather(ParameterId id) {
  Live& live = LiveOf(id);
  if (live.is_live) return absl::OkStatus();
  const Parameter& parameter = seat_.model()[id];
  const int64_t elements = seat_.layout.GatheredElements(id);
  TESSERA_ASSIGN_OR_RETURN(
      live.memory,
      AccountedMemory::Allocate(seat_.device, parameter.name(),
                                elements * SizeInBytes(parameter.dtype()),
                                offload::Purpose::kBuffers, &group_));
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> own,
                           shards_.Open(ShardOf(id)));
  auto work =
      group_.Start(GatherOperation(seat_.layout, id, own, live.memory.bytes()));
  if (!work.ok()) return work.status();
  live.work = *std::move(work);
  live.is_live = true;
  live_elements_ += elements;
  ++gathers_;
  return absl::OkStatus();
}

absl::Status LiveParameters::FinishGather(ParameterId id) {
  Live& live = LiveOf(id);
  if (!live.work) return absl::OkStatus();
  const absl::Status done = live.work->Wait();
  live.work.reset();
  TESSERA_RETURN_IF_ERROR(done);
  return shards_.Close(ShardOf(id), /*changed=*/false);
}

absl::StatusOr<TensorView> LiveParameters::Value(ParameterId id) const {
  const Parameter& parameter = seat_.model()[id];
  const Live& live = live_[static_cast<size_t>(id.value())];
  if (!live.is_acquired) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter \"", parameter.name(),
        "\" is not acquired: under stage 3 it is whole between Acquire and "
        "Release only"));
  }
  return TensorView::Create(
      live.memory.bytes().first(static_cast<size_t>(parameter.bytes)),
      parameter.dtype(), parameter.spec.shape);
}

absl::Status LiveParameters::Release(std::span<const ParameterId> window) {
  if (!has_window_) {
    return absl::FailedPreconditionError("no window is acquired");
  }
  has_window_ = false;
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(seat_.model().CheckId(id));
    LiveOf(id).is_acquired = false;
  }
  if (!plan_) {
    for (ParameterId id : window) Drop(id);
    return absl::OkStatus();
  }
  // guard_ has gone on to the next window.
  for (ParameterId id : plan_->windows[guard_.position() - 1].release) Drop(id);
  return absl::OkStatus();
}

void LiveParameters::Drop(ParameterId id) {
  Live& live = LiveOf(id);
  if (!live.is_live) return;
  FinishGather(id).IgnoreError();
  live.memory = {};
  live.is_live = false;
  live_elements_ -= seat_.layout.GatheredElements(id);
}

absl::Status LiveParameters::EndStep() {
  if (has_window_) {
    return absl::FailedPreconditionError(
        "a window of parameters is still acquired: release it before the "
        "step");
  }
  for (const Parameter& parameter : seat_.model().all()) Drop(parameter.id);
  return absl::OkStatus();
}

}  // namespace tessera::zero3
