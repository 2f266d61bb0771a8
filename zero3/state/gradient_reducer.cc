#include "zero3/state/gradient_reducer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

GradientReducer::GradientReducer(const StateContext& context,
                                 const ShardedStateOptions& options,
                                 const StateGroups& groups,
                                 std::vector<DType> dtypes, HostCopies* host)
    : context_(context),
      options_(options),
      groups_(groups),
      dtypes_(std::move(dtypes)),
      host_(host),
      buckets_(
          ReduceBuckets::Of(context.layout, dtypes_, options.bucket_bytes)),
      pool_(context.device),
      bucket_memory_(buckets_.all().size()),
      entries_(context.model().count()) {}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const StateContext& context, const ShardedStateOptions& options,
    const StateGroups& groups, std::shared_ptr<ShardPrefetch> prefetch,
    HostCopies* host) {
  std::vector<DType> dtypes;
  for (const ModelParameter& parameter : context.model().all()) {
    dtypes.push_back(options.GradientTypeOf(parameter));
  }
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(context, options, groups, std::move(dtypes), host));
  TESSERA_RETURN_IF_ERROR(options.stage >= 2
                              ? reducer->CreateShards(std::move(prefetch))
                              : reducer->AllocateKept());
  TESSERA_ASSIGN_OR_RETURN(
      reducer->wire_,
      GradientReduction::Create(
          *groups.reduce,
          {.quantized = options.quantized_gradients,
           .average = options.average_gradients,
           .scatters = context.layout.ranks() == groups.reduce->size()},
          reducer->pool_));
  return reducer;
}

absl::Status GradientReducer::CreateShards(
    std::shared_ptr<ShardPrefetch> prefetch) {
  std::vector<ShardBlock> shards;
  for (const ModelParameter& parameter : context_.model().all()) {
    ShardBlock& shard = shards.emplace_back();
    if (!parameter.trainable()) continue;
    const ParameterId id = parameter.id;
    shard = {absl::StrCat(options_.key_prefix, "gradient/", id.value()),
             context_.OwnExtent(id).slot * SizeInBytes(DTypeOf(id)),
             DTypeOf(id), options_.gradient_tier};
  }
  TESSERA_ASSIGN_OR_RETURN(
      shards_, ShardStore::Create(std::move(shards),
                                  {.purpose = offload::Purpose::kGradients,
                                   .device = context_.device,
                                   .prefetch = std::move(prefetch)}));
  is_in_shards_ = !shards_->in_tier() && groups_.reduce->size() == 1 &&
                  groups_.replicas == nullptr;
  return absl::OkStatus();
}

absl::Status GradientReducer::Allocate(std::string_view key, int64_t bytes,
                                       bool is_kept, AccountedMemory& memory) {
  if (!memory.bytes().empty()) return absl::OkStatus();
  if (is_kept) {
    // Uses no shared memory, because every rank would map the pages of other
    // ranks' gradients that it reads.
    TESSERA_ASSIGN_OR_RETURN(
        memory, AccountedMemory::Allocate(context_.device, key, bytes,
                                          offload::Purpose::kGradients));
  } else {
    TESSERA_ASSIGN_OR_RETURN(memory, pool_.Take(key, bytes));
  }
  return ops().Zero(memory.bytes());
}

// If gradients are kept, a packed bucket is a copy of them.
absl::Status GradientReducer::AllocateBucket(size_t index) {
  return Allocate(absl::StrCat("gradient bucket ", index),
                  BucketAt(index).bytes(),
                  /*is_kept=*/!is_sharded() && BucketAt(index).is_direct,
                  bucket_memory_[index]);
}

absl::Status GradientReducer::AllocateWhole(ParameterId id) {
  return Allocate(
      context_.model()[id].name(),
      context_.layout.GatheredElements(id) * SizeInBytes(DTypeOf(id)),
      /*is_kept=*/!is_sharded(), entries_[id].memory);
}

absl::Status GradientReducer::AllocateKept() {
  for (size_t b = 0; b < bucket_memory_.size(); ++b) {
    if (BucketAt(b).is_direct) {
      TESSERA_RETURN_IF_ERROR(AllocateBucket(b));
      continue;
    }
    for (ParameterId id : BucketAt(b).parameters) {
      TESSERA_RETURN_IF_ERROR(AllocateWhole(id));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::CheckOpen(ParameterId id) const {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  const ModelParameter& parameter = context_.model()[id];
  if (!parameter.trainable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", parameter.name(), "\" is frozen: it has no gradient"));
  }
  if (!is_sharded() && entries_[id].is_reduced) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of \"", parameter.name(),
        "\" was reduced in this step: at stages 0 and 1 reduce each gradient "
        "once a step, after the last micro-batch"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> GradientReducer::Gradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(ForgetDownload(id));
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  entries_[id].is_added = true;
  const ModelParameter& parameter = context_.model()[id];
  return TensorView::Create(
      whole.first(
          static_cast<size_t>(parameter.elements * SizeInBytes(DTypeOf(id)))),
      DTypeOf(id), parameter.spec.shape, context_.device.memory->kind());
}

absl::StatusOr<std::span<std::byte>> GradientReducer::WholeOf(ParameterId id) {
  if (is_in_shards_) return shards_->Open(IndexOf(id));
  const size_t index = buckets_.BucketOf(id);
  if (!BucketAt(index).is_direct) {
    TESSERA_RETURN_IF_ERROR(AllocateWhole(id));
    return entries_[id].memory.bytes();
  }
  TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
  const int64_t width = SizeInBytes(DTypeOf(id));
  return bucket_memory_[index].bytes().subspan(
      static_cast<size_t>(buckets_.BeginOf(id) * width),
      static_cast<size_t>(context_.layout.GatheredElements(id) * width));
}

// The window must contain whole buckets.
absl::Status GradientReducer::CheckWindow(
    std::span<const ParameterId> window) const {
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
    if (!context_.model()[id].trainable()) continue;
    TESSERA_RETURN_IF_ERROR(CheckOpen(id));
    for (ParameterId other : BucketAt(buckets_.BucketOf(id)).parameters) {
      if (std::find(window.begin(), window.end(), other) != window.end()) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "the gradient of \"", context_.model()[id].name(),
          "\" is to be reduced without that of \"",
          context_.model()[other].name(),
          "\", of the same group of parameters; reduce all of a group at "
          "once"));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Start(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    ++entries_[id].reductions;
    TESSERA_RETURN_IF_ERROR(ForgetDownload(id));
  }
  TESSERA_RETURN_IF_ERROR(FinishFlights());
  for (auto id = window.rbegin(); id != window.rend(); ++id) {
    if (!context_.model()[*id].trainable()) continue;
    const size_t index = buckets_.BucketOf(*id);
    // A bucket is started when its first parameter is reached.
    if (BucketAt(index).parameters.front() != *id) continue;
    TESSERA_RETURN_IF_ERROR(StartBucket(index));
  }
  if (!options_.overlap) TESSERA_RETURN_IF_ERROR(FinishFlights());
  // The reductions of the previous window have finished.
  return DownloadFinal(
      std::exchange(last_reduced_, {window.begin(), window.end()}));
}

absl::Status GradientReducer::StartBucket(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  for (ParameterId id : bucket.parameters) {
    entries_[id].is_reduced = true;
    entries_[id].is_added = false;
  }
  if (is_in_shards_) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
  if (!bucket.is_direct) TESSERA_RETURN_IF_ERROR(PackBucket(index));
  TESSERA_ASSIGN_OR_RETURN(
      PendingReduction reduction,
      wire_->Start(
          {bucket_memory_[index].bytes().data(), bucket.elements, bucket.dtype},
          bucket.counts, static_cast<uint32_t>(index) + 1));
  in_flight_.push_back({index, std::move(reduction)});
  return absl::OkStatus();
}

// Packs every gradient at its offset; padding and unused gradients are zeros.
absl::Status GradientReducer::PackBucket(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  const int64_t width = SizeInBytes(bucket.dtype);
  // Every rank has the same number of slots, in the same order.
  for (const auto& pieces : bucket.pieces) {
    for (const BucketPiece& piece : pieces) {
      const std::span<const std::byte> whole =
          entries_[piece.parameter].memory.bytes();
      if (whole.empty() || piece.size == 0) continue;
      TESSERA_RETURN_IF_ERROR(
          ops().Copy(whole.subspan(static_cast<size_t>(piece.begin * width),
                                   static_cast<size_t>(piece.size * width)),
                     bucket_memory_[index].bytes().subspan(
                         static_cast<size_t>(piece.offset * width))));
    }
  }
  if (!is_sharded()) return absl::OkStatus();
  for (ParameterId id : bucket.parameters) {
    pool_.Give(std::exchange(entries_[id].memory, {}));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::AwaitBucket(size_t index) {
  const bool is_in_flight =
      std::any_of(in_flight_.begin(), in_flight_.end(),
                  [&](const InFlight& one) { return one.bucket == index; });
  return is_in_flight ? FinishFlights() : absl::OkStatus();
}

absl::Status GradientReducer::FinishFlights() {
  while (!in_flight_.empty()) TESSERA_RETURN_IF_ERROR(FinishOldest());
  return absl::OkStatus();
}

absl::Status GradientReducer::FinishOldest() {
  InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  const size_t index = flight.bucket;
  const auto at = [&](const absl::Status& status) {
    const ParameterId id = BucketAt(index).parameters.front();
    return Annotate(status, absl::StrCat("reduction of the gradient of \"",
                                         context_.model()[id].name(), "\""));
  };
  TESSERA_RETURN_IF_ERROR(at(flight.reduction.Wait()));
  if (groups_.replicas != nullptr) {
    const collectives::Buffer own = OwnBlock(index);
    TESSERA_RETURN_IF_ERROR(at(groups_.replicas->RunOn(
        context_.queue(),
        collectives::AllReduceOf(own, own,
                                 options_.average_gradients
                                     ? collectives::Reduction::Average()
                                     : collectives::Reduction::Sum()))));
  }
  // Whole gradients may be reduced in place.
  if (!is_sharded() && BucketAt(index).is_direct) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(TakeOwn(index));
  pool_.Give(std::exchange(bucket_memory_[index], {}));
  return absl::OkStatus();
}

collectives::Buffer GradientReducer::OwnBlock(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  const auto own = bucket.counts.begin() + context_.rank.value();
  return collectives::Buffer(bucket_memory_[index].bytes().data(),
                             bucket.elements, bucket.dtype)
      .Slice(std::accumulate(bucket.counts.begin(), own, int64_t{0}), *own);
}

absl::Status GradientReducer::TakeOwn(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  const int64_t width = SizeInBytes(bucket.dtype);
  const auto rank = static_cast<size_t>(context_.rank.value());
  for (const BucketPiece& piece : bucket.pieces[rank]) {
    if (piece.size == 0) continue;
    const std::byte* const sums =
        bucket_memory_[index].bytes().data() + piece.offset * width;
    TESSERA_RETURN_IF_ERROR(
        is_sharded()
            ? AddToShard(piece, sums)
            : ops().Copy({sums, static_cast<size_t>(piece.size * width)},
                         entries_[piece.parameter].memory.bytes().subspan(
                             static_cast<size_t>(piece.begin * width))));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::AddToShard(const BucketPiece& piece,
                                         const std::byte* sums) {
  const size_t index = IndexOf(piece.parameter);
  const DType dtype = DTypeOf(piece.parameter);
  const bool is_first =
      !std::exchange(entries_[piece.parameter].has_sums, true);
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> shard,
      shards_->Open(index,
                    is_first ? ShardAccess::kOverwrite : ShardAccess::kUpdate));
  TESSERA_RETURN_IF_ERROR(
      is_first
          ? ops().Copy(
                {sums, static_cast<size_t>(piece.slot * SizeInBytes(dtype))},
                shard)
          : ops().Run(op::Add{dtype, sums, shard.data(), piece.slot}));
  return shards_->Close(index, /*changed=*/true);
}

// Starts to download the gradients that are final, assuming that each is
// reduced as often as in the previous step.
absl::Status GradientReducer::DownloadFinal(
    std::span<const ParameterId> reduced) {
  if (host_ == nullptr || in_tier()) return absl::OkStatus();
  for (ParameterId id : reduced) {
    const Entry& entry = entries_[id];
    if (!context_.model()[id].trainable() ||
        entry.reductions != entry.previous_reductions) {
      continue;
    }
    TESSERA_RETURN_IF_ERROR(OpenOwn(id, /*is_final=*/true).status());
    TESSERA_RETURN_IF_ERROR(CloseOwn(id, /*changed=*/false));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::ForgetDownload(ParameterId id) {
  return host_ == nullptr ? absl::OkStatus() : host_->ForgetDownload(id);
}

absl::StatusOr<offload::TypedSpan> GradientReducer::OpenForChange(
    ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own, OpenOwn(id));
  TESSERA_RETURN_IF_ERROR(ForgetDownload(id));
  opened_.push_back(id);
  return own;
}

// All ranks exchange missing gradients before any rank waits for a bucket.
absl::Status GradientReducer::CheckComplete() {
  if (options_.allow_unused) TESSERA_RETURN_IF_ERROR(ZeroMissing());
  int64_t missing = -1;
  for (const ReduceBucket& bucket : buckets_.all()) {
    for (ParameterId id : bucket.parameters) {
      const bool is_missing = entries_[id].is_added || !entries_[id].is_reduced;
      if (is_missing && missing < 0) missing = id.value();
    }
  }
  std::vector<int64_t> all(static_cast<size_t>(groups_.agree->size()));
  TESSERA_RETURN_IF_ERROR(groups_.agree->AllGather(
      collectives::ConstBuffer(std::span(&std::as_const(missing), 1)),
      collectives::Buffer(std::span(all))));
  const auto first =
      std::find_if(all.begin(), all.end(), [](int64_t id) { return id >= 0; });
  if (first == all.end()) return absl::OkStatus();
  const std::string reason = absl::StrCat(
      "rank ", first - all.begin(), " of ", groups_.agree->name(),
      " has not reduced the gradient of parameter ", *first, " \"",
      context_.model()[ParameterId(*first)].name(),
      "\" at the end of the step; every rank must reduce every gradient after "
      "it was last added to, or allow_unused be set");
  groups_.reduce->Abort(reason);
  return absl::FailedPreconditionError(reason);
}

absl::Status GradientReducer::ZeroMissing() {
  for (const ReduceBucket& bucket : buckets_.all()) {
    for (ParameterId id : bucket.parameters) {
      if (entries_[id].is_reduced || entries_[id].is_added) continue;
      entries_[id].is_reduced = true;
      if (!is_sharded() || is_in_shards_ || context_.OwnExtent(id).slot == 0) {
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(
          const std::span<std::byte> shard,
          shards_->Open(IndexOf(id), ShardAccess::kOverwrite));
      TESSERA_RETURN_IF_ERROR(ops().Zero(shard));
      TESSERA_RETURN_IF_ERROR(shards_->Close(IndexOf(id), /*changed=*/true));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Finish() {
  for (ParameterId id : std::exchange(opened_, {})) {
    TESSERA_RETURN_IF_ERROR(CloseOwn(id, /*changed=*/true));
  }
  TESSERA_RETURN_IF_ERROR(FinishFlights());
  pool_.Trim();
  return is_sharded() ? shards_->Settle() : absl::OkStatus();
}

void GradientReducer::AnnounceOwn(ParameterId id) {
  if (!is_sharded() || context_.OwnExtent(id).size() == 0) return;
  shards_->Announce(IndexOf(id));
}

absl::StatusOr<offload::TypedSpan> GradientReducer::OpenOwn(ParameterId id,
                                                            bool is_final) {
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  const Extent extent = context_.OwnExtent(id);
  const DType dtype = DTypeOf(id);
  if (extent.size() == 0) return offload::TypedSpan(nullptr, dtype, 0);
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> bytes,
      is_sharded() ? shards_->Open(IndexOf(id)) : WholeOf(id));
  const int64_t first = is_sharded() ? 0 : extent.begin;
  const offload::TypedSpan own(bytes.data() + first * SizeInBytes(dtype), dtype,
                               extent.size());
  if (is_final && host_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(host_->StartDownload(
        id, in_tier() ? offload::TypedSpan(nullptr, dtype, 0) : own));
  }
  return own;
}

absl::Status GradientReducer::CloseOwn(ParameterId id, bool changed) {
  if (!is_sharded() || context_.OwnExtent(id).size() == 0) {
    return absl::OkStatus();
  }
  return shards_->Close(IndexOf(id), changed);
}

absl::StatusOr<offload::TypedSpan> GradientReducer::OpenForStep(
    ParameterId id) {
  if (host_ == nullptr) return OpenOwn(id);
  if (!in_tier()) return host_->Gradient(id);
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> shard,
                           shards_->OpenOnHost(IndexOf(id)));
  return offload::TypedSpan(shard.data(), DTypeOf(id),
                            context_.OwnExtent(id).size());
}

absl::Status GradientReducer::CloseAfterStep(ParameterId id) {
  if (host_ == nullptr) return CloseOwn(id, /*changed=*/false);
  return in_tier() ? shards_->CloseOnHost(IndexOf(id), /*changed=*/false)
                   : absl::OkStatus();
}

absl::Status GradientReducer::Clear() {
  last_reduced_.clear();
  for (Entry& entry : entries_) {
    entry.is_added = entry.is_reduced = entry.has_sums = false;
    entry.previous_reductions = std::exchange(entry.reductions, 0);
  }
  if (is_in_shards_) return shards_->SetToZeros();
  if (is_sharded()) return absl::OkStatus();
  for (const AccountedMemory& memory : bucket_memory_) {
    TESSERA_RETURN_IF_ERROR(ops().Zero(memory.bytes()));
  }
  for (const Entry& entry : entries_) {
    TESSERA_RETURN_IF_ERROR(ops().Zero(entry.memory.bytes()));
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
