#include "zero3/state/gradient_reducer.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

// Returns true if a bucket of several gradients must be packed: with chunks,
// each rank owns a piece of every gradient.
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
    const ModelParameter& parameter = model[*it];
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

GradientReducer::GradientReducer(const StateContext& context,
                                 const std::vector<DType>& dtypes,
                                 const GradientOptions& options,
                                 const GradientGroups& groups,
                                 ShardStore* shards,
                                 const std::vector<size_t>& shard_of)
    : context_(context),
      dtypes_(dtypes),
      groups_(groups),
      reduction_(options.average ? collectives::Reduction::Average()
                                 : collectives::Reduction::Sum()),
      overlap_(options.overlap),
      shards_(shards),
      shard_of_(shard_of),
      is_in_shards_(shards != nullptr && !shards->in_tier() &&
                    groups.shard->size() == 1 && groups.replicas == nullptr),
      buckets_(ReduceBuckets::Of(context.layout, dtypes, options.bucket_bytes)),
      pool_(context.device),
      bucket_(buckets_.all().size()) {
  const auto count = static_cast<size_t>(context_.model().count());
  own_.resize(count);
  added_.resize(count);
  reduced_.resize(count);
  has_sums_.resize(count);
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const StateContext& context, const std::vector<DType>& dtypes,
    const GradientOptions& options, const GradientGroups& groups,
    ShardStore* shards, const std::vector<size_t>& shard_of) {
  if (options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient buckets of ", options.bucket_bytes,
                     " bytes; at least 1 is needed"));
  }
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(context, dtypes, options, groups, shards, shard_of));
  if (!reducer->is_sharded()) {
    TESSERA_RETURN_IF_ERROR(reducer->AllocateKept());
  }
  TESSERA_ASSIGN_OR_RETURN(
      reducer->wire_, GradientReduction::Create(*groups.shard,
                                                {.quantized = options.quantized,
                                                 .average = options.average,
                                                 .queue = context.device.queue,
                                                 .ops = context.device.ops},
                                                reducer->pool_));
  return reducer;
}

GradientReducer::~GradientReducer() {
  for (const InFlight& flight : in_flight_) {
    if (flight.all_reduce) flight.all_reduce->Wait().IgnoreError();
  }
}

absl::StatusOr<AccountedMemory> GradientReducer::Allocate(std::string_view key,
                                                          int64_t bytes) {
  if (is_sharded()) return pool_.Take(key, bytes);
  // Uses no shared memory, because every rank would map the pages of other
  // ranks' gradients that it reads.
  return AccountedMemory::Allocate(context_.device, key, bytes,
                                   offload::Purpose::kGradients);
}

absl::Status GradientReducer::AllocateKept() {
  for (size_t b = 0; b < bucket_.size(); ++b) {
    if (BucketAt(b).is_direct) {
      TESSERA_RETURN_IF_ERROR(AllocateBucket(b));
      TESSERA_RETURN_IF_ERROR(ops().Zero(bucket_[b].bytes()));
      continue;
    }
    for (ParameterId id : BucketAt(b).parameters) {
      TESSERA_RETURN_IF_ERROR(AllocateOwn(id));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::AllocateBucket(size_t index) {
  if (!bucket_[index].bytes().empty()) return absl::OkStatus();
  const ReduceBucket& bucket = BucketAt(index);
  const std::string key = absl::StrCat("gradient bucket ", index);
  if (!is_sharded() && !bucket.is_direct) {
    // A copy of kept gradients.
    TESSERA_ASSIGN_OR_RETURN(bucket_[index], pool_.Take(key, bucket.bytes()));
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(bucket_[index], Allocate(key, bucket.bytes()));
  return absl::OkStatus();
}

absl::Status GradientReducer::AllocateOwn(ParameterId id) {
  AccountedMemory& own = own_[IndexOf(id)];
  if (!own.bytes().empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(own, Allocate(context_.model()[id].name(),
                                         context_.layout.GatheredElements(id) *
                                             SizeInBytes(DTypeOf(id))));
  return ops().Zero(own.bytes());
}

absl::Status GradientReducer::CheckOpen(ParameterId id) const {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  const ModelParameter& parameter = context_.model()[id];
  if (!parameter.trainable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", parameter.name(), "\" is frozen: it has no gradient"));
  }
  if (!is_sharded() && reduced_[IndexOf(id)]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of \"", parameter.name(),
        "\" was reduced in this step: at stages 0 and 1 reduce each gradient "
        "once a step, after the last micro-batch"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> GradientReducer::Gradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(CheckOpen(id));
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  added_[IndexOf(id)] = true;
  const ModelParameter& parameter = context_.model()[id];
  return TensorView::Create(
      whole.first(
          static_cast<size_t>(parameter.elements * SizeInBytes(DTypeOf(id)))),
      DTypeOf(id), parameter.spec.shape, context_.device.memory->kind());
}

absl::StatusOr<std::span<std::byte>> GradientReducer::WholeOf(ParameterId id) {
  if (is_in_shards_) return shards_->Open(shard_of_[IndexOf(id)]);
  const size_t index = buckets_.BucketOf(id);
  const ReduceBucket& bucket = BucketAt(index);
  if (!bucket.is_direct) {
    TESSERA_RETURN_IF_ERROR(AllocateOwn(id));
    return own_[IndexOf(id)].bytes();
  }
  if (bucket_[index].bytes().empty()) {
    TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
    TESSERA_RETURN_IF_ERROR(ops().Zero(bucket_[index].bytes()));
  }
  const int64_t width = SizeInBytes(bucket.dtype);
  return bucket_[index].bytes().subspan(
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
  TESSERA_RETURN_IF_ERROR(FinishFlights());
  for (auto id = window.rbegin(); id != window.rend(); ++id) {
    if (!context_.model()[*id].trainable()) continue;
    const size_t index = buckets_.BucketOf(*id);
    // A bucket is started when its first parameter is reached.
    if (BucketAt(index).parameters.front() != *id) continue;
    TESSERA_RETURN_IF_ERROR(StartBucket(index));
  }
  return overlap_ ? absl::OkStatus() : FinishFlights();
}

// Packs every gradient at its offset; padding and unused gradients are zeros.
absl::Status GradientReducer::PackBucket(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  TESSERA_RETURN_IF_ERROR(ops().Zero(bucket_[index].bytes()));
  const int64_t width = SizeInBytes(bucket.dtype);
  // Every rank has the same number of slots, in the same order.
  for (const auto& pieces : bucket.pieces) {
    for (const BucketPiece& piece : pieces) {
      const std::span<const std::byte> own =
          own_[IndexOf(piece.parameter)].bytes();
      if (own.empty() || piece.size == 0) continue;
      TESSERA_RETURN_IF_ERROR(
          ops().Copy(own.subspan(static_cast<size_t>(piece.begin * width),
                                 static_cast<size_t>(piece.size * width)),
                     bucket_[index].bytes().subspan(
                         static_cast<size_t>(piece.offset * width))));
    }
  }
  if (!is_sharded()) return absl::OkStatus();
  for (ParameterId id : bucket.parameters) {
    pool_.Give(std::exchange(own_[IndexOf(id)], {}));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::StartBucket(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  for (ParameterId id : bucket.parameters) {
    reduced_[IndexOf(id)] = true;
    added_[IndexOf(id)] = false;
  }
  if (is_in_shards_) return absl::OkStatus();
  const bool is_new = bucket_[index].bytes().empty();
  TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
  if (!bucket.is_direct) {
    TESSERA_RETURN_IF_ERROR(PackBucket(index));
  } else if (is_new) {
    TESSERA_RETURN_IF_ERROR(ops().Zero(bucket_[index].bytes()));
  }
  const collectives::Buffer all(bucket_[index].bytes().data(), bucket.elements,
                                bucket.dtype);
  const auto label = static_cast<uint32_t>(index) + 1;
  InFlight flight;
  flight.bucket = index;
  if (context_.layout.ranks() == groups_.shard->size()) {
    TESSERA_ASSIGN_OR_RETURN(flight.reduction,
                             wire_->Start(all, bucket.counts, label));
  } else {
    collectives::Operation operation =
        collectives::AllReduceOf(all, all, reduction_);
    operation.label = label;
    TESSERA_ASSIGN_OR_RETURN(
        flight.all_reduce,
        groups_.shard->StartOn(context_.queue(), std::move(operation)));
  }
  in_flight_.push_back(std::move(flight));
  return absl::OkStatus();
}

collectives::Buffer GradientReducer::OwnBlock(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  int64_t offset = 0;
  for (int64_t r = 0; r < context_.rank.value(); ++r) {
    offset += bucket.counts[static_cast<size_t>(r)];
  }
  return collectives::Buffer(bucket_[index].bytes().data(), bucket.elements,
                             bucket.dtype)
      .Slice(offset, bucket.counts[static_cast<size_t>(context_.rank.value())]);
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
  const auto at = [&](const absl::Status& status) {
    const ParameterId id = BucketAt(flight.bucket).parameters.front();
    return Annotate(status, absl::StrCat("reduction of the gradient of \"",
                                         context_.model()[id].name(), "\""));
  };
  Queue& queue = context_.queue();
  TESSERA_RETURN_IF_ERROR(at(flight.reduction
                                 ? flight.reduction->Wait()
                                 : queue.Wait(flight.all_reduce->event())));
  if (groups_.replicas != nullptr) {
    const collectives::Buffer own = OwnBlock(flight.bucket);
    TESSERA_RETURN_IF_ERROR(at(groups_.replicas->RunOn(
        queue, collectives::AllReduceOf(own, own, reduction_))));
  }
  TESSERA_RETURN_IF_ERROR(TakeOwn(flight.bucket));
  FreeBucket(flight.bucket);
  return absl::OkStatus();
}

void GradientReducer::FreeBucket(size_t index) {
  if (!is_sharded() && BucketAt(index).is_direct) return;
  pool_.Give(std::exchange(bucket_[index], {}));
}

absl::Status GradientReducer::TakeOwn(size_t index) {
  const ReduceBucket& bucket = BucketAt(index);
  // Whole gradients, reduced in place.
  if (!is_sharded() && bucket.is_direct) return absl::OkStatus();
  const int64_t width = SizeInBytes(bucket.dtype);
  const auto rank = static_cast<size_t>(context_.rank.value());
  for (const BucketPiece& piece : bucket.pieces[rank]) {
    if (piece.size == 0) continue;
    const std::byte* const sums =
        bucket_[index].bytes().data() + piece.offset * width;
    if (is_sharded()) {
      TESSERA_RETURN_IF_ERROR(AddToShard(piece, sums));
      continue;
    }
    TESSERA_RETURN_IF_ERROR(
        ops().Copy({sums, static_cast<size_t>(piece.size * width)},
                   own_[IndexOf(piece.parameter)].bytes().subspan(
                       static_cast<size_t>(piece.begin * width))));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::AddToShard(const BucketPiece& piece,
                                         const std::byte* sums) {
  const size_t index = shard_of_[IndexOf(piece.parameter)];
  const DType dtype = DTypeOf(piece.parameter);
  const bool is_first = !has_sums_[IndexOf(piece.parameter)];
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
  has_sums_[IndexOf(piece.parameter)] = true;
  return shards_->Close(index, /*changed=*/true);
}

std::optional<ParameterId> GradientReducer::FirstMissing() const {
  for (const ReduceBucket& bucket : buckets_.all()) {
    for (ParameterId id : bucket.parameters) {
      if (added_[IndexOf(id)] || !reduced_[IndexOf(id)]) return id;
    }
  }
  return std::nullopt;
}

absl::Status GradientReducer::ZeroMissing() {
  for (const ReduceBucket& bucket : buckets_.all()) {
    for (ParameterId id : bucket.parameters) {
      if (reduced_[IndexOf(id)] || added_[IndexOf(id)]) continue;
      reduced_[IndexOf(id)] = true;
      const Extent extent = context_.OwnExtent(id);
      if (!is_sharded() || is_in_shards_ || extent.slot == 0) continue;
      const size_t index = shard_of_[IndexOf(id)];
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> shard,
                               shards_->Open(index, ShardAccess::kOverwrite));
      TESSERA_RETURN_IF_ERROR(ops().Zero(shard));
      TESSERA_RETURN_IF_ERROR(shards_->Close(index, /*changed=*/true));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Finish() {
  TESSERA_RETURN_IF_ERROR(FinishFlights());
  pool_.Trim();
  return is_sharded() ? shards_->Settle() : absl::OkStatus();
}

absl::StatusOr<offload::TypedSpan> GradientReducer::OpenOwn(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  const Extent extent = context_.OwnExtent(id);
  const DType dtype = DTypeOf(id);
  if (extent.size() == 0) return offload::TypedSpan(nullptr, dtype, 0);
  if (is_sharded()) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> shard,
                             shards_->Open(shard_of_[IndexOf(id)]));
    return offload::TypedSpan(shard.data(), dtype, extent.size());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  return offload::TypedSpan(whole.data() + extent.begin * SizeInBytes(dtype),
                            dtype, extent.size());
}

absl::Status GradientReducer::CloseOwn(ParameterId id, bool changed) {
  if (!is_sharded() || context_.OwnExtent(id).size() == 0)
    return absl::OkStatus();
  return shards_->Close(shard_of_[IndexOf(id)], changed);
}

absl::StatusOr<offload::TypedSpan> GradientReducer::OpenOnHost(ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> shard,
                           shards_->OpenOnHost(shard_of_[IndexOf(id)]));
  return offload::TypedSpan(shard.data(), DTypeOf(id),
                            context_.OwnExtent(id).size());
}

absl::Status GradientReducer::CloseOnHost(ParameterId id) {
  return shards_->CloseOnHost(shard_of_[IndexOf(id)], /*changed=*/false);
}

void GradientReducer::AnnounceOwn(ParameterId id) {
  if (!is_sharded() || context_.OwnExtent(id).size() == 0) return;
  shards_->Announce(shard_of_[IndexOf(id)]);
}

absl::Status GradientReducer::Clear() {
  std::fill(added_.begin(), added_.end(), false);
  std::fill(reduced_.begin(), reduced_.end(), false);
  std::fill(has_sums_.begin(), has_sums_.end(), false);
  if (is_in_shards_) TESSERA_RETURN_IF_ERROR(shards_->SetToZeros());
  if (is_sharded()) return absl::OkStatus();
  for (const auto* const memories : {&bucket_, &own_}) {
    for (const AccountedMemory& memory : *memories) {
      TESSERA_RETURN_IF_ERROR(ops().Zero(memory.bytes()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
