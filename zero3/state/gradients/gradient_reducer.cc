#include "zero3/state/gradients/gradient_reducer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/reduction/combine.h"

namespace tessera::zero3 {
namespace {

// Buckets on their way while more gradients are computed.
constexpr size_t kMostInFlight = 2;

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
      shards_(shards),
      shard_of_(shard_of),
      buckets_(ReduceBuckets::Of(seat.layout, dtypes, options.bucket_bytes)) {
  const auto count = static_cast<size_t>(seat_.model().count());
  whole_.resize(count);
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
  return reducer;
}

GradientReducer::~GradientReducer() {
  for (InFlight& flight : in_flight_) flight.work->Wait().IgnoreError();
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
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> whole, WholeOf(id));
  const Parameter& parameter = seat_.model()[id];
  return TensorView::Create(whole.first(static_cast<size_t>(
                                parameter.elements * SizeInBytes(DTypeOf(id)))),
                            DTypeOf(id), parameter.spec.shape);
}

absl::StatusOr<std::span<std::byte>> GradientReducer::WholeOf(ParameterId id) {
  const Parameter& parameter = seat_.model()[id];
  const int64_t bytes =
      seat_.layout.GatheredElements(id) * SizeInBytes(DTypeOf(id));
  AccountedMemory& whole = whole_[IndexOf(id)];
  if (whole.bytes().empty() && bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(
        whole,
        AccountedMemory::Allocate(seat_.device, parameter.name(), bytes,
                                  is_sharded() ? offload::Purpose::kBuffers
                                               : offload::Purpose::kGradients));
    std::memset(whole.bytes().data(), 0, whole.bytes().size());
  }
  return whole.bytes();
}

absl::Status GradientReducer::MarkReady(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(CheckOpen(id));
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
  while (in_flight_.size() >= kMostInFlight) {
    TESSERA_RETURN_IF_ERROR(FinishOldest());
  }
  const ReduceBucket& bucket = buckets_.all()[index];
  InFlight flight;
  flight.bucket = index;
  TESSERA_ASSIGN_OR_RETURN(
      flight.memory, AccountedMemory::Allocate(
                         seat_.device, absl::StrCat("gradient bucket ", index),
                         bucket.elements * SizeInBytes(bucket.dtype),
                         offload::Purpose::kBuffers, groups_.shard));
  Pack(bucket, flight.memory.bytes());
  for (ParameterId id : bucket.parameters) reduced_[IndexOf(id)] = true;
  const collectives::Buffer all(flight.memory.bytes().data(), bucket.elements,
                                bucket.dtype);
  const bool is_whole = seat_.layout.ranks() == 1;
  collectives::Operation operation =
      is_whole ? collectives::AllReduceOf(all, all, reduction_)
               : collectives::ReduceScatterOf(
                     all, OwnBlock(flight), reduction_,
                     bucket.IsEven() ? std::vector<int64_t>() : bucket.counts);
  TESSERA_ASSIGN_OR_RETURN(flight.work,
                           groups_.shard->Start(std::move(operation)));
  in_flight_.push_back(std::move(flight));
  return absl::OkStatus();
}

// Padding is zero.
void GradientReducer::Pack(const ReduceBucket& bucket,
                           std::span<std::byte> memory) {
  const int64_t width = SizeInBytes(bucket.dtype);
  for (const auto& pieces : bucket.pieces) {
    for (const BucketPiece& piece : pieces) {
      const AccountedMemory& whole = whole_[IndexOf(piece.parameter)];
      std::byte* const target = memory.data() + piece.offset * width;
      const int64_t known = whole.bytes().empty() ? 0 : piece.size;
      if (known > 0) {
        std::memcpy(target, whole.bytes().data() + piece.begin * width,
                    static_cast<size_t>(known * width));
      }
      std::memset(target + known * width, 0,
                  static_cast<size_t>((piece.slot - known) * width));
    }
  }
  if (!is_sharded()) return;
  for (ParameterId id : bucket.parameters) whole_[IndexOf(id)] = {};
}

collectives::Buffer GradientReducer::OwnBlock(const InFlight& flight) const {
  const ReduceBucket& bucket = buckets_.all()[flight.bucket];
  int64_t offset = 0;
  for (int64_t r = 0; r < seat_.rank.value(); ++r) {
    offset += bucket.counts[static_cast<size_t>(r)];
  }
  return collectives::Buffer(flight.memory.bytes().data(), bucket.elements,
                             bucket.dtype)
      .Slice(offset, bucket.counts[static_cast<size_t>(seat_.rank.value())]);
}

absl::Status GradientReducer::FinishOldest() {
  InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  TESSERA_RETURN_IF_ERROR(flight.work->Wait());
  if (groups_.replicas != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        groups_.replicas->AllReduce(OwnBlock(flight), reduction_));
  }
  return TakeOwn(buckets_.all()[flight.bucket], flight.memory.bytes());
}

absl::Status GradientReducer::TakeOwn(const ReduceBucket& bucket,
                                      std::span<const std::byte> memory) {
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
    std::memcpy(whole.data() + piece.begin * width, sums,
                static_cast<size_t>(piece.size * width));
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
    std::memcpy(shard.data(), sums,
                static_cast<size_t>(piece.slot * SizeInBytes(dtype)));
  } else {
    const std::array<const void*, 2> sources = {shard.data(), sums};
    void* const target = shard.data();
    collectives::Combine(
        collectives::Combination::Partial(collectives::Reduction::Sum(), dtype),
        sources, std::span(&target, 1), piece.slot);
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
  while (!in_flight_.empty()) TESSERA_RETURN_IF_ERROR(FinishOldest());
  return absl::OkStatus();
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
  const std::byte* const whole = whole_[IndexOf(id)].bytes().data();
  return offload::ConstTypedSpan(whole + extent.begin * SizeInBytes(dtype),
                                 dtype, extent.size());
}

absl::Status GradientReducer::CloseOwn(ParameterId id) {
  if (!is_sharded() || seat_.OwnExtent(id).size() == 0) return absl::OkStatus();
  return shards_->Close(shard_of_[IndexOf(id)], /*changed=*/false);
}

void GradientReducer::Clear() {
  std::fill(reduced_.begin(), reduced_.end(), false);
  std::fill(has_sums_.begin(), has_sums_.end(), false);
  BeginRound();
  for (AccountedMemory& whole : whole_) {
    std::fill(whole.bytes().begin(), whole.bytes().end(), std::byte{0});
  }
}

}  // namespace tessera::zero3
