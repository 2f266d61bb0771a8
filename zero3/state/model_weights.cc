#include "zero3/state/model_weights.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "zero3/state/state_operations.h"

namespace tessera::zero3 {

bool IsKeptWhole(const StateLayout& layout, const ShardedStateOptions& options,
                 const ModelParameter& parameter) {
  if (options.stage < 3 || parameter.elements == 0) return true;
  // Encoded parameters have the same values on every mesh, whatever the size of
  // a rank's part.
  if (options.IsEncoded(parameter.id)) return false;
  return (layout.ranks() == 1 &&
          options.ParameterTierOf(parameter.id) == nullptr) ||
         layout.IsSmall(parameter.id);
}

ModelWeights::ModelWeights(const StateContext& context,
                           const ShardedStateOptions& options,
                           const StateGroups& groups)
    : context_(context),
      options_(options),
      groups_{groups.gather.get(), groups.secondary.get()},
      pool_(context.device),
      weights_(context.model().count()) {}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Create(
    const StateContext& context, const ShardedStateOptions& options,
    const StateGroups& groups, std::shared_ptr<ShardPrefetch> prefetch) {
  std::unique_ptr<ModelWeights> weights(
      new ModelWeights(context, options, groups));
  TESSERA_RETURN_IF_ERROR(weights->Allocate(std::move(prefetch)));
  return weights;
}

ModelWeights::~ModelWeights() {
  // Before the memory they fill.
  for (Weight& weight : weights_) weight.gather.reset();
}

absl::Status ModelWeights::Allocate(std::shared_ptr<ShardPrefetch> prefetch) {
  std::vector<ShardBlock> shards;
  for (const ModelParameter& parameter : context_.model().all()) {
    const ParameterId id = parameter.id;
    const int64_t width = SizeInBytes(parameter.dtype());
    ShardBlock& shard = shards.emplace_back();
    Weight& weight = weights_[id];
    weight.is_whole = IsKeptWhole(context_.layout, options_, parameter);
    if (!weight.is_whole) {
      weight.gather = std::make_unique<WeightGather>(
          context_, id, GatherOptions{.quantized = options_.quantized_weights},
          groups_, pool_);
      if (options_.IsEncoded(id)) {
        TESSERA_RETURN_IF_ERROR(AllocateEncoded(id));
        continue;
      }
      shard = {absl::StrCat(options_.key_prefix, "parameter/", id.value()),
               context_.OwnExtent(id).slot * width, parameter.dtype(),
               options_.ParameterTierOf(id)};
      continue;
    }
    weight.gather = std::make_unique<WeightGather>(
        context_, id, GatherOptions(), GatherGroups{.shard = groups_.shard},
        pool_);
    TESSERA_ASSIGN_OR_RETURN(
        weight.memory,
        AccountedMemory::Allocate(context_.device, parameter.name(),
                                  context_.layout.GatheredElements(id) * width,
                                  offload::Purpose::kParameters));
    TESSERA_RETURN_IF_ERROR(context_.device.ops->Zero(weight.memory.bytes()));
  }
  TESSERA_ASSIGN_OR_RETURN(
      shards_, ShardStore::Create(std::move(shards),
                                  {.purpose = offload::Purpose::kParameters,
                                   .device = context_.device,
                                   .prefetch = std::move(prefetch),
                                   .marks_writes = true}));
  return absl::OkStatus();
}

absl::Status ModelWeights::AllocateEncoded(ParameterId id) {
  const ModelParameter& parameter = context_.model()[id];
  const int64_t slot = context_.OwnExtent(id).slot;
  if (slot == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t bytes,
      options_.frozen_codec->MaxEncodedBytes(parameter.dtype(), slot));
  TESSERA_ASSIGN_OR_RETURN(
      weights_[id].encoded,
      AccountedMemory::Allocate(context_.device, parameter.name(), bytes,
                                offload::Purpose::kParameters));
  if (!context_.device.ops->computes()) return absl::OkStatus();
  const std::vector<std::byte> zeros(
      static_cast<size_t>(slot * SizeInBytes(parameter.dtype())));
  return EncodeOnHost(id, zeros);
}

absl::Status ModelWeights::Decode(ParameterId id, std::span<std::byte> slot) {
  if (slot.empty()) return absl::OkStatus();
  return context_.device.ops->Run(
      op::DecodeNf4{options_.frozen_codec, context_.model()[id].dtype(),
                    weights_[id].encoded.bytes(), slot});
}

absl::Status ModelWeights::EncodeOnHost(ParameterId id,
                                        std::span<const std::byte> slot) {
  const std::span<std::byte> target = weights_[id].encoded.bytes();
  std::vector<std::byte> encoded(target.size());
  TESSERA_RETURN_IF_ERROR(
      options_.frozen_codec->Encode(context_.model()[id].dtype(), slot, encoded)
          .status(),
      Annotate(_, context_.model()[id].name()));
  StagingPool staging(context_.queue());
  TESSERA_RETURN_IF_ERROR(staging.Upload(encoded, target));
  return context_.queue().Synchronize();
}

absl::Status ModelWeights::Encode(ParameterId id,
                                  std::span<const std::byte> slot) {
  if (!context_.device.ops->computes() || slot.empty()) return absl::OkStatus();
  if (context_.queue().is_immediate()) return EncodeOnHost(id, slot);
  StagingPool staging(context_.queue());
  TESSERA_ASSIGN_OR_RETURN(const Download download,
                           staging.StartDownload(slot));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> values,
                           download.Wait());
  return EncodeOnHost(id, values);
}

absl::StatusOr<offload::TypedSpan> ModelWeights::OpenEncoded(ParameterId id) {
  Weight& weight = weights_[id];
  if (weight.opens == 0) {
    const ModelParameter& parameter = context_.model()[id];
    TESSERA_ASSIGN_OR_RETURN(
        weight.decoded,
        pool_.Take(parameter.name(), context_.OwnExtent(id).slot *
                                         SizeInBytes(parameter.dtype())));
    TESSERA_RETURN_IF_ERROR(
        context_.queue().Wait(weight.decoded.last_use().event));
    TESSERA_RETURN_IF_ERROR(Decode(id, weight.decoded.bytes()));
  }
  ++weight.opens;
  return OwnSpan(id, weight.decoded.bytes().data());
}

absl::Status ModelWeights::CloseEncoded(ParameterId id, bool changed) {
  Weight& weight = weights_[id];
  weight.is_changed |= changed;
  if (--weight.opens > 0) return absl::OkStatus();
  absl::Status status;
  if (std::exchange(weight.is_changed, false)) {
    status = Encode(id, weight.decoded.bytes());
  }
  pool_.Give(std::exchange(weight.decoded, {}));
  return status;
}

absl::Status ModelWeights::At(ParameterId id,
                              const absl::Status& status) const {
  return Annotate(status,
                  absl::StrCat("gather of parameter ", id.value(), " \"",
                               context_.model()[id].name(), "\""));
}

void ModelWeights::Announce(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    const Weight& weight = weights_[id];
    if (weight.windows == 0 && weight.gather->NeedsOwn()) AnnounceOwn(id);
  }
}

absl::Status ModelWeights::Start(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    if (weights_[id].is_whole || weights_[id].windows++ > 0) continue;
    TESSERA_RETURN_IF_ERROR(StartOne(id));
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::StartOne(ParameterId id) {
  Weight& weight = weights_[id];
  const ModelParameter& parameter = context_.model()[id];
  TESSERA_ASSIGN_OR_RETURN(
      weight.memory,
      pool_.Take(parameter.name(), context_.layout.GatheredElements(id) *
                                       SizeInBytes(parameter.dtype())));
  std::span<std::byte> own;
  weight.has_shard_open = weight.gather->NeedsOwn();
  QueuePoint ready = weight.memory.last_use();
  if (weight.has_shard_open && options_.IsEncoded(id)) {
    // The device's queue decodes the slot.
    TESSERA_RETURN_IF_ERROR(context_.queue().Wait(ready.event));
    const std::span<std::byte> slot =
        weight.gather->SlotIn(weight.memory.bytes());
    TESSERA_RETURN_IF_ERROR(At(id, Decode(id, slot)));
    TESSERA_ASSIGN_OR_RETURN(ready, context_.device.Mark());
    own = slot;
  } else if (weight.has_shard_open) {
    // The device's queue encodes the slot.
    const auto access = options_.quantized_weights ? ShardAccess::kUpdate
                                                   : ShardAccess::kElsewhere;
    TESSERA_ASSIGN_OR_RETURN(own, shards_->Open(IndexOf(id), access),
                             At(id, _));
    TESSERA_ASSIGN_OR_RETURN(
        ready.event, shards_->ReadyAfter(IndexOf(id), ready), At(id, _));
  }
  TESSERA_RETURN_IF_ERROR(
      At(id, weight.gather->Start(own, weight.memory.bytes(), ready)));
  weight.is_started = true;
  return absl::OkStatus();
}

absl::Status ModelWeights::Wait(std::span<const ParameterId> window) {
  for (ParameterId id : window) TESSERA_RETURN_IF_ERROR(WaitOne(id));
  return absl::OkStatus();
}

absl::Status ModelWeights::WaitOne(ParameterId id) {
  Weight& weight = weights_[id];
  TESSERA_RETURN_IF_ERROR(
      context_.queue().Wait(std::exchange(weight.arrival, {})));
  if (!std::exchange(weight.is_started, false)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(At(id, weight.gather->Finish()));
  return weight.has_shard_open ? shards_->Close(IndexOf(id), /*changed=*/false)
                               : absl::OkStatus();
}

absl::StatusOr<TensorView> ModelWeights::Value(ParameterId id) {
  const ModelParameter& parameter = context_.model()[id];
  const Weight& weight = weights_[id];
  if (weight.is_whole) {
    TESSERA_RETURN_IF_ERROR(WaitOne(id));
  } else if (weight.windows == 0 || weight.is_started) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter \"", parameter.name(),
        "\" is not gathered: under stage 3 it is whole between Acquire (or ",
        "StartGather and AwaitGather) and Release only"));
  }
  return TensorView::Create(
      weight.memory.bytes().first(static_cast<size_t>(parameter.bytes)),
      parameter.dtype(), parameter.spec.shape, context_.device.memory->kind());
}

absl::Status ModelWeights::Release(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    if (weights_[id].is_whole || weights_[id].windows > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", context_.model()[id].name(),
                     "\" is released, and not gathered"));
  }
  for (ParameterId id : window) {
    if (weights_[id].is_whole || --weights_[id].windows > 0) continue;
    TESSERA_RETURN_IF_ERROR(WaitOne(id));
    pool_.Give(std::exchange(weights_[id].memory, {}));
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::EndStep() {
  for (const ModelParameter& parameter : context_.model().all()) {
    if (weights_[parameter.id].windows == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", parameter.name(),
                     "\" is still gathered: release it before the step"));
  }
  for (Weight& weight : weights_) weight.gather->Forget();
  pool_.Trim();
  return absl::OkStatus();
}

offload::TypedSpan ModelWeights::OwnSpan(ParameterId id,
                                         std::byte* data) const {
  return {data, context_.model()[id].dtype(), context_.OwnExtent(id).size()};
}

absl::StatusOr<offload::TypedSpan> ModelWeights::OpenOwn(ParameterId id) {
  if (weights_[id].is_whole) {
    TESSERA_RETURN_IF_ERROR(WaitOne(id));
    Weight& weight = weights_[id];
    return OwnSpan(id, weight.gather->SlotIn(weight.memory.bytes()).data());
  }
  if (options_.IsEncoded(id)) return OpenEncoded(id);
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                           shards_->Open(IndexOf(id)));
  return OwnSpan(id, bytes.data());
}

absl::Status ModelWeights::CloseOwn(ParameterId id, bool changed) {
  if (options_.IsEncoded(id)) return CloseEncoded(id, changed);
  if (!weights_[id].is_whole) return shards_->Close(IndexOf(id), changed);
  if (!changed) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(weights_[id].written, context_.device.Mark());
  return absl::OkStatus();
}

absl::Status ModelWeights::CloseWritten(ParameterId id, Event arrived) {
  Weight& weight = weights_[id];
  TESSERA_RETURN_IF_ERROR(CloseOwn(id, /*changed=*/weight.is_whole));
  if (weight.is_whole) {
    weight.written.event = arrived;
    weight.arrival = std::move(arrived);
  } else {
    shards_->SetArrival(IndexOf(id), std::move(arrived));
  }
  return absl::OkStatus();
}

absl::StatusOr<offload::TypedSpan> ModelWeights::OpenOnHost(ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                           shards_->OpenOnHost(IndexOf(id)));
  return OwnSpan(id, bytes.data());
}

absl::Status ModelWeights::Publish() {
  TESSERA_RETURN_IF_ERROR(shards_->Settle());
  TESSERA_RETURN_IF_ERROR(AwaitPublications());
  TESSERA_RETURN_IF_ERROR(StartPublications());
  return options_.overlap ? absl::OkStatus() : AwaitPublications();
}

// Does not wait for arrivals of this rank's own elements.
absl::Status ModelWeights::AwaitPublications() {
  absl::Status status;
  for (const ModelParameter& parameter : context_.model().all()) {
    const Weight& weight = weights_[parameter.id];
    if (weight.is_whole && weight.is_started) {
      status.Update(WaitOne(parameter.id));
    }
  }
  return status;
}

// A parameter that this rank did not write may still be read by the queue.
absl::Status ModelWeights::StartPublications() {
  if (context_.layout.ranks() == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const QueuePoint now, context_.device.Mark());
  for (Weight& weight : weights_) {
    const std::span<std::byte> all = weight.memory.bytes();
    if (!weight.is_whole || all.empty()) continue;
    const QueuePoint written = std::exchange(weight.written, {});
    TESSERA_RETURN_IF_ERROR(weight.gather->Start(
        weight.gather->SlotIn(all), all, written.number > 0 ? written : now));
    weight.is_started = true;
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
