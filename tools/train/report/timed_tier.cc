#include "tools/train/report/timed_tier.h"

#include "collectives/engine/operation_context.h"

namespace tessera::train {

using collectives::MonotonicNanos;
using offload::BlockInfo;
using offload::BlockView;
using offload::Operation;

Operation TimedTier::Logged(int64_t begin_ns, Operation operation) {
  const uint64_t number = log_->Began(begin_ns);
  operation.OnDone(
      [log = log_, number](const absl::Status&) { log->Ended(number); });
  log_->Called(begin_ns);
  return operation;
}

Operation TimedTier::StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              BlockInfo info) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, inner_->StartPut(key, bytes, info));
}

Operation TimedTier::StartPrefetch(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, inner_->StartPrefetch(key));
}

Operation TimedTier::StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, offset ? inner_->StartGetRange(key, *offset, out)
                              : inner_->StartGet(key, out));
}

absl::Status TimedTier::Drop(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  absl::Status status = inner_->Drop(key);
  log_->Called(begin);
  return status;
}

absl::StatusOr<BlockView> TimedTier::Map(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  absl::StatusOr<BlockView> view = inner_->Map(key);
  log_->Called(begin);
  return view;
}

absl::StatusOr<BlockView> TimedTier::MapNew(std::string_view key, int64_t bytes,
                                            BlockInfo info) {
  const int64_t begin = MonotonicNanos();
  absl::StatusOr<BlockView> view = inner_->MapNew(key, bytes, info);
  log_->Called(begin);
  return view;
}

absl::Status TimedTier::Flush() {
  const int64_t begin = MonotonicNanos();
  absl::Status status = inner_->Flush();
  log_->Called(begin);
  return status;
}

}  // namespace tessera::train
