#include "zero3/state/gathered_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

GatheredParameters::GatheredParameters(const StateSeat& seat,
                                       const GatherOptions& options,
                                       const GatherGroups& groups,
                                       ShardStore& shards,
                                       std::vector<size_t> shard_of)
    : seat_(seat),
      options_(options),
      groups_(groups),
      shards_(shards),
      shard_of_(std::move(shard_of)),
      pool_(seat.device),
      live_(static_cast<size_t>(seat.model().count())) {}

GatheredParameters::~GatheredParameters() {
  for (Live& live : live_) live.gather.reset();  // Before the memory it fills.
}

absl::Status GatheredParameters::At(ParameterId id,
                                    const absl::Status& status) const {
  return Annotate(status, absl::StrCat("gather of parameter ", id.value(),
                                       " \"", seat_.model()[id].name(), "\""));
}

int64_t GatheredParameters::BytesOf(ParameterId id) const {
  return seat_.layout.GatheredElements(id) *
         SizeInBytes(seat_.model()[id].dtype());
}

void GatheredParameters::Announce(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    const Live& live = LiveOf(id);
    if (ShardOf(id) == kNoShard || live.windows > 0) continue;
    if (live.gather != nullptr && !live.gather->NeedsOwn()) continue;
    shards_.Announce(ShardOf(id));
  }
}

absl::Status GatheredParameters::Start(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    if (ShardOf(id) == kNoShard) continue;
    if (LiveOf(id).windows++ == 0) TESSERA_RETURN_IF_ERROR(StartOne(id));
  }
  return absl::OkStatus();
}

absl::Status GatheredParameters::StartOne(ParameterId id) {
  Live& live = LiveOf(id);
  TESSERA_ASSIGN_OR_RETURN(live.memory,
                           pool_.Take(seat_.model()[id].name(), BytesOf(id)));
  live_bytes_ += BytesOf(id);
  if (live.gather == nullptr) {
    live.gather =
        std::make_unique<WeightGather>(seat_, id, options_, groups_, pool_);
  }
  std::span<std::byte> own;
  live.has_shard_open = live.gather->NeedsOwn();
  if (live.has_shard_open) {
    TESSERA_ASSIGN_OR_RETURN(own, shards_.Open(ShardOf(id)), At(id, _));
  }
  TESSERA_RETURN_IF_ERROR(At(id, live.gather->Start(own, live.memory.bytes())));
  live.is_started = true;
  return absl::OkStatus();
}

absl::Status GatheredParameters::Wait(std::span<const ParameterId> window) {
  for (ParameterId id : window) TESSERA_RETURN_IF_ERROR(WaitOne(id));
  return absl::OkStatus();
}

absl::Status GatheredParameters::WaitOne(ParameterId id) {
  Live& live = LiveOf(id);
  if (!live.is_started) return absl::OkStatus();
  live.is_started = false;
  TESSERA_RETURN_IF_ERROR(At(id, live.gather->Finish()));
  if (!live.has_shard_open) return absl::OkStatus();
  return shards_.Close(ShardOf(id), /*changed=*/false);
}

absl::StatusOr<TensorView> GatheredParameters::Value(ParameterId id) const {
  const Parameter& parameter = seat_.model()[id];
  const Live& live = live_[static_cast<size_t>(id.value())];
  if (live.windows == 0 || live.is_started) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter \"", parameter.name(),
        "\" is not gathered: under stage 3 it is whole between Acquire (or ",
        "StartGather and AwaitGather) and Release only"));
  }
  return TensorView::Create(
      live.memory.bytes().first(static_cast<size_t>(parameter.bytes)),
      parameter.dtype(), parameter.spec.shape);
}

absl::Status GatheredParameters::Release(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    if (ShardOf(id) == kNoShard || LiveOf(id).windows > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", seat_.model()[id].name(),
                     "\" is released, and not gathered"));
  }
  for (ParameterId id : window) {
    if (ShardOf(id) == kNoShard || --LiveOf(id).windows > 0) continue;
    TESSERA_RETURN_IF_ERROR(WaitOne(id));
    pool_.Give(std::move(LiveOf(id).memory));
    LiveOf(id).memory = {};
    live_bytes_ -= BytesOf(id);
  }
  return absl::OkStatus();
}

absl::Status GatheredParameters::EndStep() {
  for (const Parameter& parameter : seat_.model().all()) {
    if (LiveOf(parameter.id).windows == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", parameter.name(),
                     "\" is still gathered: release it before the step"));
  }
  for (Live& live : live_) {
    if (live.gather != nullptr) live.gather->Forget();
  }
  pool_.Trim();
  return absl::OkStatus();
}

}  // namespace tessera::zero3
