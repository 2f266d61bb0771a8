#include "zero3/state/gradients/gradient_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
GradientMemory::GradientMemory(const StateSeat& seat,
                               const ReduceBuckets& buckets,
                               collectives::Communicator& group, bool is_kept)
    : seat_(seat),
      buckets_(buckets),
      group_(group),
      is_kept_(is_kept),
      bucket_(buckets.all().size()),
      own_(static_cast<size_t>(seat.model().count())) {}

absl::StatusOr<std::unique_ptr<GradientMemory>> GradientMemory::Create(
    const StateSeat& seat, const ReduceBuckets& buckets,
    collectives::Communicator& group, bool is_kept) {
  std::unique_ptr<GradientMemory> memory(
      new GradientMemory(seat, buckets, group, is_kept));
  if (is_kept) TESSERA_RETURN_IF_ERROR(memory->AllocateKept());
  return memory;
}

absl::Status GradientMemory::AllocateKept() {
  for (size_t b = 0; b < bucket_.size(); ++b) {
    if (buckets_.all()[b].is_direct) {
      TESSERA_RETURN_IF_ERROR(AllocateBucket(b));
      continue;
    }
    for (ParameterId id : buckets_.all()[b].parameters) {
      TESSERA_RETURN_IF_ERROR(AllocateOwn(id));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientMemory::AllocateOwn(ParameterId id) {
  if (!OwnOf(id).bytes().empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      OwnOf(id),
      AccountedMemory::Allocate(
          seat_.device, seat_.model()[id].name(),
          seat_.layout.GatheredElements(id) * SizeInBytes(BucketOf(id).dtype),
          is_kept_ ? offload::Purpose::kGradients
                   : offload::Purpose::kBuffers));
  seat_.device.ops->Zero(OwnOf(id).bytes());
  return absl::OkStatus();
}

absl::Status GradientMemory::AllocateBucket(size_t index) {
  if (!bucket_[index].bytes().empty()) return absl::OkStatus();
  const ReduceBucket& bucket = buckets_.all()[index];
  TESSERA_ASSIGN_OR_RETURN(
      bucket_[index],
      AccountedMemory::Allocate(
          seat_.device, absl::StrCat("gradient bucket ", index), bucket.bytes(),
          is_kept_ && bucket.is_direct ? offload::Purpose::kGradients
                                       : offload::Purpose::kBuffers,
          &group_));
  seat_.device.ops->Zero(bucket_[index].bytes());
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> GradientMemory::GradientOf(
    ParameterId id) {
  const ReduceBucket& bucket = BucketOf(id);
  if (!bucket.is_direct) {
    TESSERA_RETURN_IF_ERROR(AllocateOwn(id));
    return OwnOf(id).bytes();
  }
  const size_t index = buckets_.BucketOf(id);
  TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
  const int64_t width = SizeInBytes(bucket.dtype);
  return bucket_[index].bytes().subspan(
      static_cast<size_t>(buckets_.BeginOf(id) * width),
      static_cast<size_t>(seat_.layout.GatheredElements(id) * width));
}

absl::Status GradientMemory::Seal(ParameterId id) {
  if (is_kept_ || OwnOf(id).bytes().empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(AllocateBucket(buckets_.BucketOf(id)));
  CopyToBucket(id);
  OwnOf(id) = {};
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> GradientMemory::OpenBucket(size_t index) {
  TESSERA_RETURN_IF_ERROR(AllocateBucket(index));
  if (is_kept_) {
    for (ParameterId id : buckets_.all()[index].parameters) CopyToBucket(id);
  }
  return bucket_[index].bytes();
}

void GradientMemory::CloseBucket(size_t index) {
  if (is_kept_ && buckets_.all()[index].is_direct) return;
  bucket_[index] = {};
}

// A bucket that is not direct has chunks: every rank has as many slots, in the
// same order.
void GradientMemory::CopyToBucket(ParameterId id) {
  const std::span<const std::byte> own = OwnOf(id).bytes();
  if (own.empty()) return;
  const size_t index = buckets_.BucketOf(id);
  const ReduceBucket& bucket = buckets_.all()[index];
  const int64_t width = SizeInBytes(bucket.dtype);
  const auto& first = bucket.pieces[0];
  const auto place = std::find_if(
      first.begin(), first.end(),
      [id](const BucketPiece& piece) { return piece.parameter == id; });
  for (const auto& pieces : bucket.pieces) {
    const BucketPiece& piece =
        pieces[static_cast<size_t>(place - first.begin())];
    if (piece.size == 0) continue;
    seat_.device.ops->Copy(own.subspan(static_cast<size_t>(piece.begin * width),
                                       static_cast<size_t>(piece.size * width)),
                           bucket_[index].bytes().subspan(
                               static_cast<size_t>(piece.offset * width)));
  }
}

void GradientMemory::Clear() {
  if (!is_kept_) return;
  for (AccountedMemory& memory : bucket_) {
    seat_.device.ops->Zero(memory.bytes());
  }
  for (AccountedMemory& memory : own_) {
    seat_.device.ops->Zero(memory.bytes());
  }
}

}  // namespace tessera::zero3
