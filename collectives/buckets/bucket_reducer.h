// BucketReducer: many small tensors reduced as few large messages, while more
// of them are still being computed.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto reducer, BucketReducer::Create(communicator, gradients));
//   for (int64_t i : backward_order) {        // in any order
//     ComputeGradient(i);
//     TESSERA_RETURN_IF_ERROR(reducer->MarkReady(i));
//   }
//   TESSERA_RETURN_IF_ERROR(reducer->Finish());   // all are reduced
//
// A bucket is sent as soon as its last tensor and all buckets before it are
// ready. After the first round buckets follow the order in which tensors became
// ready on rank 0, so that the first ones leave as early as they can. Source:
// Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3.
//
// A tensor that is given memory (data not null) keeps it: its elements are
// copied into the bucket and back. A tensor without memory lives in its bucket:
// write to ViewOf(i), nothing is copied; with any such tensor the order stays
// as it was given. A tensor that is alone in its bucket is reduced where it is.
//
// Not thread-safe. The tensors must not be touched from MarkReady to Finish.
#ifndef TESSERA_COLLECTIVES_BUCKETS_BUCKET_REDUCER_H_
#define TESSERA_COLLECTIVES_BUCKETS_BUCKET_REDUCER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buckets/bucket_plan.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

struct BucketOptions {
  int64_t bucket_bytes = 25'000'000;
  Reduction reduction = Reduction::Average();
  CallOptions call = {};
};

class BucketReducer {
 public:
  // `tensors` in the order in which they are expected to become ready, the same
  // on every rank. `communicator` outlives the reducer and is its own: no other
  // collective runs on it between MarkReady and Finish. InvalidArgument where a
  // tensor cannot be reduced or bucket_bytes is not positive.
  static absl::StatusOr<std::unique_ptr<BucketReducer>> Create(
      Communicator& communicator, std::vector<Buffer> tensors,
      BucketOptions options = {});

  // Waits for what was started.
  ~BucketReducer();

  // Where tensor `index` is now: its own memory or its place in the bucket.
  absl::StatusOr<Buffer> ViewOf(int64_t index) const;

  // Tensor `index` is ready on this rank. Returns without waiting.
  // InvalidArgument where there is none or it was ready before in this round.
  absl::Status MarkReady(int64_t index);

  // Returns when every tensor holds its reduced value, and begins the next
  // round. FailedPrecondition, naming them, where tensors are not ready: the
  // round goes on.
  absl::Status Finish();

  const BucketPlan& plan() const { return plan_; }

 private:
  struct Bucket {
    std::unique_ptr<SharedMemory> memory;  // Null where a lone tensor has its.
    Buffer buffer;
    int64_t missing = 0;  // Members that are not ready.
    std::optional<Work> work;
  };

  BucketReducer(Communicator& communicator, std::vector<Buffer> tensors,
                BucketOptions options)
      : communicator_(communicator),
        tensors_(std::move(tensors)),
        options_(std::move(options)) {}

  absl::Status BuildBuckets(std::span<const int64_t> order);
  absl::Status AllocateBucket(const BucketPlan::Bucket& plan, Bucket& bucket);
  Buffer PlaceOf(int64_t index) const;
  absl::Status StartWholeBuckets();
  absl::Status CheckAllReady() const;
  absl::Status WaitForBuckets();
  void CopyBack();
  absl::Status FollowReadyOrder();
  void BeginRound();

  Communicator& communicator_;
  std::vector<Buffer> tensors_;
  BucketOptions options_;
  bool order_is_fixed_ = false;

  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  size_t next_bucket_ = 0;  // The first that was not started.
  std::vector<bool> ready_;
  std::vector<int64_t> ready_order_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BUCKETS_BUCKET_REDUCER_H_
