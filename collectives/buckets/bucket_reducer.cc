#include "collectives/buckets/bucket_reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

absl::Status ValidateTensor(const Buffer& tensor, size_t index,
                            const Reduction& reduction) {
  if (tensor.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", index, " has ", tensor.count, " elements"));
  }
  return Annotate(Validate(reduction, tensor.dtype),
                  absl::StrCat("tensor ", index));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BucketReducer>> BucketReducer::Create(
    Communicator& communicator, std::vector<Buffer> tensors,
    BucketOptions options) {
  if (options.bucket_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buckets of ", options.bucket_bytes, " bytes; more than 0 are needed"));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ValidateTensor(tensors[i], i, options.reduction));
  }
  std::unique_ptr<BucketReducer> reducer(
      new BucketReducer(communicator, std::move(tensors), std::move(options)));
  std::vector<int64_t> order(reducer->tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  TESSERA_RETURN_IF_ERROR(reducer->BuildBuckets(order));
  return reducer;
}

BucketReducer::~BucketReducer() {
  for (Bucket& bucket : buckets_) {
    if (bucket.work) static_cast<void>(bucket.work->Wait());
  }
}

absl::Status BucketReducer::BuildBuckets(std::span<const int64_t> order) {
  std::vector<BucketTensor> sizes;
  for (const Buffer& tensor : tensors_) {
    sizes.push_back({tensor.count, tensor.dtype});
    if (tensor.data == nullptr && tensor.count > 0) order_is_fixed_ = true;
  }
  plan_ = PlanBuckets(sizes, order, options_.bucket_bytes);
  buckets_.clear();
  buckets_.resize(plan_.buckets.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    TESSERA_RETURN_IF_ERROR(AllocateBucket(plan_.buckets[b], buckets_[b]));
  }
  BeginRound();
  return absl::OkStatus();
}

absl::Status BucketReducer::AllocateBucket(const BucketPlan::Bucket& plan,
                                           Bucket& bucket) {
  const Buffer& first = tensors_[static_cast<size_t>(plan.members.front())];
  if (plan.members.size() == 1 && first.data != nullptr) {
    bucket.buffer = first;
    return absl::OkStatus();
  }
  const int64_t bytes = plan.count * SizeInBytes(plan.dtype);
  TESSERA_ASSIGN_OR_RETURN(bucket.memory, communicator_.AllocateShared(bytes));
  std::memset(bucket.memory->bytes().data(), 0, static_cast<size_t>(bytes));
  bucket.buffer = Buffer(bucket.memory->bytes().data(), plan.count, plan.dtype);
  return absl::OkStatus();
}

void BucketReducer::BeginRound() {
  next_bucket_ = 0;
  ready_.assign(tensors_.size(), false);
  ready_order_.clear();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].missing = static_cast<int64_t>(plan_.buckets[b].members.size());
    buckets_[b].work.reset();
  }
}

// The tensor's place in its bucket.
Buffer BucketReducer::PlaceOf(int64_t index) const {
  const BucketPlan::Place& place = plan_.place[static_cast<size_t>(index)];
  return buckets_[static_cast<size_t>(place.bucket)].buffer.Slice(
      place.offset, tensors_[static_cast<size_t>(index)].count);
}

absl::StatusOr<Buffer> BucketReducer::ViewOf(int64_t index) const {
  if (index < 0 || index >= static_cast<int64_t>(tensors_.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no tensor ", index, "; there are ", tensors_.size()));
  }
  const Buffer& own = tensors_[static_cast<size_t>(index)];
  return own.data != nullptr ? own : PlaceOf(index);
}

absl::Status BucketReducer::MarkReady(int64_t index) {
  TESSERA_ASSIGN_OR_RETURN(const Buffer tensor, ViewOf(index));
  if (ready_[static_cast<size_t>(index)]) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", index, " was already ready in this round"));
  }
  ready_[static_cast<size_t>(index)] = true;
  ready_order_.push_back(index);
  const Buffer place = PlaceOf(index);
  if (place.data != tensor.data && tensor.count > 0) {
    std::memcpy(place.data, tensor.data, static_cast<size_t>(tensor.bytes()));
  }
  const int64_t bucket = plan_.place[static_cast<size_t>(index)].bucket;
  if (--buckets_[static_cast<size_t>(bucket)].missing > 0) {
    return absl::OkStatus();
  }
  return StartWholeBuckets();
}

// Every rank starts the buckets in the same order, whatever became ready first.
absl::Status BucketReducer::StartWholeBuckets() {
  while (next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].missing == 0) {
    Bucket& bucket = buckets_[next_bucket_];
    TESSERA_ASSIGN_OR_RETURN(
        bucket.work,
        communicator_.Start(
            AllReduceOf(bucket.buffer, bucket.buffer, options_.reduction),
            options_.call),
        Annotate(_, absl::StrCat("bucket ", next_bucket_)));
    ++next_bucket_;
  }
  return absl::OkStatus();
}

absl::Status BucketReducer::CheckAllReady() const {
  std::string missing;
  int64_t count = 0;
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i]) continue;
    if (++count <= 8) absl::StrAppend(&missing, count > 1 ? ", " : "", i);
  }
  if (count == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      count, " of ", tensors_.size(), " tensors are not ready: ", missing,
      count > 8 ? ", ..." : "",
      ". Mark each of them, also those that took no part (as zeros)"));
}

absl::Status BucketReducer::Finish() {
  TESSERA_RETURN_IF_ERROR(CheckAllReady());
  TESSERA_RETURN_IF_ERROR(WaitForBuckets());
  CopyBack();
  if (!order_is_fixed_) {
    order_is_fixed_ = true;
    return FollowReadyOrder();
  }
  BeginRound();
  return absl::OkStatus();
}

absl::Status BucketReducer::WaitForBuckets() {
  absl::Status first_error;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b].work) continue;
    const absl::Status status = buckets_[b].work->Wait();
    if (!status.ok() && first_error.ok()) {
      first_error = Annotate(status, absl::StrCat("bucket ", b));
    }
  }
  return first_error;
}

void BucketReducer::CopyBack() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Buffer& tensor = tensors_[i];
    const Buffer place = PlaceOf(static_cast<int64_t>(i));
    if (tensor.data == nullptr || tensor.data == place.data) continue;
    if (tensor.count == 0) continue;
    std::memcpy(tensor.data, place.data, static_cast<size_t>(tensor.bytes()));
  }
}

// Rebuilds the buckets in the order in which rank 0's tensors became ready.
absl::Status BucketReducer::FollowReadyOrder() {
  std::vector<int64_t> order = ready_order_;
  TESSERA_RETURN_IF_ERROR(
      communicator_.Broadcast(Buffer(std::span(order)), Rank(0), options_.call),
      Annotate(_, "the order of buckets"));
  if (std::is_sorted(order.begin(), order.end())) {
    BeginRound();
    return absl::OkStatus();
  }
  return BuildBuckets(order);
}

}  // namespace tessera::collectives
