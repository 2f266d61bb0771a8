#include "collectives/nccl/nccl_lane.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/operation_context.h"

namespace tessera::collectives {

NcclLane::~NcclLane() {
  if (comm_ == nullptr) return;
  static_cast<void>(api_.UseDevice(device_));
  if (!failure_.failed()) static_cast<void>(queue_->Synchronize());
  constexpr int64_t kPatience = 5'000'000'000;
  const absl::Status finalized =
      failure_.failed() ? failure_.status()
                        : Await(api_.CommFinalize(comm_), "CommFinalize",
                                MonotonicNanos() + kPatience);
  if (finalized.ok()) {
    api_.CommDestroy(comm_);
  } else {
    Abort();
  }
}

absl::Status NcclLane::Broken() const {
  const absl::Status status = failure_.status();
  return status.ok() ? absl::AbortedError("the communicator was destroyed")
                     : status;
}

absl::Status NcclLane::Connect(const NcclUniqueId& id, int rank, int ranks,
                               int most_blocks, std::string_view queue_name,
                               int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(api_.UseDevice(device_));
  TESSERA_ASSIGN_OR_RETURN(queue_, device_.CreateQueue(queue_name));
  TESSERA_RETURN_IF_ERROR(api_.StreamOf(*queue_).status());
  NcclResult result;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return Broken();
    result = api_.CommInit(&comm_, ranks, id, rank, most_blocks);
  }
  return Await(result, "CommInitRankConfig", deadline);
}

absl::Status NcclLane::Call(std::string_view name, const Calls& calls,
                            int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(api_.UseDevice(device_));
  TESSERA_ASSIGN_OR_RETURN(const NcclStream stream, api_.StreamOf(*queue_));
  NcclResult result;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return Broken();
    queue_->NoteEnqueued();
    api_.GroupStart();
    const NcclResult called = calls(comm_, stream);
    const NcclResult ended = api_.GroupEnd();
    const bool accepted =
        called == NcclResult::kSuccess || called == NcclResult::kInProgress;
    result = accepted ? ended : called;
  }
  return Await(result, name, deadline);
}

absl::Status NcclLane::StatusOf(NcclResult result, std::string_view name) {
  const absl::Status status = NcclStatus(result, name);
  return status.ok() ? status : NcclStatus(result, name, api_.LastError(comm_));
}

absl::Status NcclLane::Await(NcclResult result, std::string_view name,
                             int64_t deadline) {
  Backoff backoff(/*may_spin=*/false);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) return Broken();
      if (result == NcclResult::kSuccess) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(StatusOf(result, name));
      const NcclResult asked = api_.CommGetAsyncError(comm_, &result);
      if (asked != NcclResult::kSuccess) result = asked;
      if (result != NcclResult::kInProgress) continue;
    }
    TESSERA_RETURN_IF_ERROR(failure_.status());
    if (MonotonicNanos() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "nccl", name, ": the other ranks did not connect by the deadline"));
    }
    backoff.Pause();
  }
}

void NcclLane::Abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (comm_ == nullptr) return;
  static_cast<void>(api_.UseDevice(device_));
  api_.CommAbort(std::exchange(comm_, nullptr));
}

absl::Status NcclLane::Health() {
  const std::lock_guard lock(mutex_);
  if (aborted_ || comm_ == nullptr) return absl::OkStatus();
  NcclResult result = NcclResult::kSuccess;
  const NcclResult asked = api_.CommGetAsyncError(comm_, &result);
  return StatusOf(asked == NcclResult::kSuccess ? result : asked,
                  "CommGetAsyncError");
}

void NcclLane::With(const std::function<void(NcclComm)>& use) {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) use(comm_);
}

}  // namespace tessera::collectives
