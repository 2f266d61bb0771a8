#include "zero3/state/gradients/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

}  // namespace

GradientReducer::GradientReducer(const StateSeat& seat,
                                 const std::vector<DType>& dtypes,
                                 const GradientOptions& options,
                                 const GradientGroups& groups,
                                 ShardStore* shards,
                                 const std::vector<size_t>& shard_of)
    : seat_(seat),
      dtypes_(dtypes),
      groups_(groups),
      reduction_(options.average ? collectives::Reduction::Average()
                                 : collectives::Reduction::Sum()),
      overlap_(options.overlap),
      shards_(shards),
      shard_of_(shard_of),
      is_in_shards_(shards != nullptr && !shards->in_tier() &&
                    groups.shard->size() == 1 && groups.replicas == nullptr),
      buckets_(ReduceBuckets::Of(seat.layout, dtypes, options.bucket_bytes)) {
  const auto count = static_cast<size_t>(seat_.model().count());
  ready_.resize(count);
  reduced_.resize(count);
  has_sums_.resize(count);
  missing_.resize(buckets_.all().size());
  BeginRound();
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const StateSeat& seat, const std::vector<DType>& dtypes,
    const GradientOptions& options, const GradientGroups& groups,
    ShardStore* shards, const std::vector<size_t>& shard_of) {
  if (options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient buckets of ", options.bucket_bytes,
                     " bytes; at least 1 is needed"));
  }
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(seat, dtypes, options, groups, shards, shard_of));
  TESSERA_ASSIGN_OR_RETURN(
      reducer->memory_,
      GradientMemory::Create(reducer->seat_, reducer->buckets_, *groups.shard,
                             /*is_kept=*/!reducer->is_sharded()));
  return reducer;
}

GradientReducer::~GradientReducer() {
  if (in_flight_) in_flight_->work->Wait().IgnoreError();
}

void GradientReducer::BeginRound() {
  std::fill(ready_.begin(), ready_.end(), false);
  for (size_t b = 0; b < missing_.size(); ++b) {
    missing_[b] = buckets_.all()[b].parameters.size();
  }
  next_bucket_ = 0;
  round_is_open_ = false;
}

absl::Status GradientReducer::CheckOpen(ParameterId id) const {
  TESSERA_RETURN_IF_ERROR(seat_.model().CheckId(id));
  const Parameter& parameter = seat_.model()[id];
  if (!parameter.trainable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", parameter.name(), "\" is frozen: it has no gradient"));
  }
  if (ready_[IndexOf(id)]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of \"", parameter.name(),
        "\" is ready already, and not all others are: each is made ready once "
        "a round"));
  }
  if (!is_sharded() && reduced_[IndexOf(id)]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of \"", parameter.name(),
        "\" was reduced in this step: where gradients are whole (stages 0 and "
        "1), make them ready once, behind the last micro-batch"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> GradientReducer::Gradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(CheckOpen(id));
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  const Parameter& parameter = seat_.model()[id];
  return TensorView::Create(whole.first(static_cast<size_t>(
                                parameter.elements * SizeInBytes(DTypeOf(id)))),
                            DTypeOf(id), parameter.spec.shape);
}

absl::StatusOr<std::span<std::byte>> GradientReducer::WholeOf(ParameterId id) {
  if (!is_in_shards_) return memory_->GradientOf(id);
  return shards_->Open(shard_of_[IndexOf(id)]);
}

absl::Status GradientReducer::MarkReady(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(CheckOpen(id));
  TESSERA_RETURN_IF_ERROR(AwaitBucket(buckets_.BucketOf(id)));
  if (!is_in_shards_) TESSERA_RETURN_IF_ERROR(memory_->Seal(id));
  ready_[IndexOf(id)] = true;
  round_is_open_ = true;
  --missing_[buckets_.BucketOf(id)];
  return StartWholeBuckets();
}

std::optional<ParameterId> GradientReducer::FirstMissing() const {
  const auto all_reduced = [this](ParameterId id) {
    return reduced_[IndexOf(id)];
  };
  for (const ReduceBucket& bucket : buckets_.all()) {
    for (ParameterId id : bucket.parameters) {
      if (ready_[IndexOf(id)]) continue;
      if (round_is_open_ || !all_reduced(id)) return id;
    }
  }
  return std::nullopt;
}

absl::Status GradientReducer::StartWholeBuckets() {
  while (next_bucket_ < missing_.size() && missing_[next_bucket_] == 0) {
    TESSERA_RETURN_IF_ERROR(StartBucket(next_bucket_));
    ++next_bucket_;
  }
  if (next_bucket_ == missing_.size()) BeginRound();
  return absl::OkStatus();
}

absl::Status GradientReducer::StartBucket(size_t index) {
  const ReduceBucket& bucket = buckets_.all()[index];
  for (ParameterId id : bucket.parameters) reduced_[IndexOf(id)] = true;
  if (is_in_shards_) return absl::OkStatus();
  InFlight flight;
  flight.bucket = index;
  TESSERA_ASSIGN_OR_RETURN(flight.memory, memory_->OpenBucket(index));
  TESSERA_RETURN_IF_ERROR(FinishFlight());
  const collectives::Buffer all(flight.memory.data(), bucket.elements,
                                bucket.dtype);
  const bool is_whole = seat_.layout.ranks() == 1;
  collectives::Operation operation =
      is_whole ? collectives::AllReduceOf(all, all, reduction_)
               : collectives::ReduceScatterOf(
                     all, OwnBlock(flight), reduction_,
                     bucket.IsEven() ? std::vector<int64_t>() : bucket.counts);
  TESSERA_ASSIGN_OR_RETURN(flight.work,
                           groups_.shard->Start(std::move(operation)));
  in_flight_ = std::move(flight);
  return overlap_ ? absl::OkStatus() : FinishFlight();
}

collectives::Buffer GradientReducer::OwnBlock(const InFlight& flight) const {
  const ReduceBucket& bucket = buckets_.all()[flight.bucket];
  int64_t offset = 0;
  for (int64_t r = 0; r < seat_.rank.value(); ++r) {
    offset += bucket.counts[static_cast<size_t>(r)];
  }
  return collectives::Buffer(flight.memory.data(), bucket.elements,
                             bucket.dtype)
      .Slice(offset, bucket.counts[static_cast<size_t>(seat_.rank.value())]);
}

// It may still be on its way, from the round before.
absl::Status GradientReducer::AwaitBucket(size_t index) {
  const bool is_in_flight = in_flight_ && in_flight_->bucket == index;
  return is_in_flight ? FinishFlight() : absl::OkStatus();
}

absl::Status GradientReducer::FinishFlight() {
  if (!in_flight_) return absl::OkStatus();
  InFlight flight = *std::move(in_flight_);
  in_flight_.reset();
  TESSERA_RETURN_IF_ERROR(flight.work->Wait());
  if (groups_.replicas != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        groups_.replicas->AllReduce(OwnBlock(flight), reduction_));
  }
  TESSERA_RETURN_IF_ERROR(TakeOwn(flight.bucket, flight.memory));
  memory_->CloseBucket(flight.bucket);
  return absl::OkStatus();
}

absl::Status GradientReducer::TakeOwn(size_t index,
                                      std::span<const std::byte> memory) {
  const ReduceBucket& bucket = buckets_.all()[index];
  // Whole, and reduced where they are.
  if (!is_sharded() && bucket.is_direct) return absl::OkStatus();
  const int64_t width = SizeInBytes(bucket.dtype);
  const auto rank = static_cast<size_t>(seat_.rank.value());
  for (const BucketPiece& piece : bucket.pieces[rank]) {
    if (piece.size == 0) continue;
    const std::byte* const sums = memory.data() + piece.offset * width;
    if (is_sharded()) {
      TESSERA_RETURN_IF_ERROR(AddToShard(piece, sums));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole,
                             WholeOf(piece.parameter));
    seat_.device.ops->Copy(
        {sums, static_cast<size_t>(piece.size * width)},
        whole.subspan(static_cast<size_t>(piece.begin * width)));
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
  if (is_first) {
    seat_.device.ops->Copy(
        {sums, static_cast<size_t>(piece.slot * SizeInBytes(dtype))}, shard);
  } else {
    seat_.device.ops->Add(dtype, sums, shard.data(), piece.slot);
  }
  has_sums_[IndexOf(piece.parameter)] = true;
  return shards_->Close(index, /*changed=*/true);
}

absl::Status GradientReducer::Finish() {
  if (const auto missing = FirstMissing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the gradient of \"", seat_.model()[*missing].name(),
                     "\" was not made ready in this step"));
  }
  TESSERA_RETURN_IF_ERROR(FinishFlight());
  return is_sharded() ? shards_->Settle() : absl::OkStatus();
}

absl::StatusOr<offload::ConstTypedSpan> GradientReducer::OpenOwn(
    ParameterId id) {
  const Extent extent = seat_.OwnExtent(id);
  const DType dtype = DTypeOf(id);
  if (extent.size() == 0) return offload::ConstTypedSpan(nullptr, dtype, 0);
  if (is_sharded()) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> shard,
                             shards_->Open(shard_of_[IndexOf(id)]));
    return offload::ConstTypedSpan(shard.data(), dtype, extent.size());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  return offload::ConstTypedSpan(
      whole.data() + extent.begin * SizeInBytes(dtype), dtype, extent.size());
}

absl::Status GradientReducer::CloseOwn(ParameterId id) {
  if (!is_sharded() || seat_.OwnExtent(id).size() == 0) return absl::OkStatus();
  return shards_->Close(shard_of_[IndexOf(id)], /*changed=*/false);
}

void GradientReducer::AnnounceOwn(ParameterId id) {
  if (!is_sharded() || seat_.OwnExtent(id).size() == 0) return;
  shards_->Announce(shard_of_[IndexOf(id)]);
}

void GradientReducer::Clear() {
  std::fill(reduced_.begin(), reduced_.end(), false);
  std::fill(has_sums_.begin(), has_sums_.end(), false);
  BeginRound();
  memory_->Clear();
  if (is_in_shards_) shards_->SetToZeros();
}

}  // namespace tessera::zero3
