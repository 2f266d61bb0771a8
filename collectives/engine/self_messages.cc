#include "collectives/engine/self_messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"

namespace tessera::collectives {

absl::StatusOr<uint64_t> SelfMessages::StartSend(
    const Signature& signature, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(status_);
  out_.push_back({signature, bytes});
  const uint64_t number = ++sends_;
  Match();
  return number;
}

absl::StatusOr<uint64_t> SelfMessages::StartReceive(
    const Signature& expected, std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(status_);
  in_.push_back({expected, bytes});
  const uint64_t number = ++receives_;
  Match();
  return number;
}

void SelfMessages::Match() {
  while (status_.ok() && !out_.empty() && !in_.empty()) {
    const Out out = out_.front();
    const In in = in_.front();
    status_ = CheckHeader(
        {in.expected, static_cast<int64_t>(in.bytes.size())}, self_,
        {out.signature, static_cast<int64_t>(out.bytes.size())}, self_);
    if (!status_.ok()) break;
    if (!in.bytes.empty()) {
      std::memmove(in.bytes.data(), out.bytes.data(), in.bytes.size());
    }
    out_.pop_front();
    in_.pop_front();
    ++matched_;
  }
  changed_.notify_all();
}

absl::StatusOr<bool> SelfMessages::Test(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (number <= matched_) return true;
  TESSERA_RETURN_IF_ERROR(status_);
  return false;
}

absl::StatusOr<bool> SelfMessages::Wait(uint64_t number,
                                        int64_t deadline) const {
  std::unique_lock lock(mutex_);
  while (number > matched_) {
    TESSERA_RETURN_IF_ERROR(status_);
    const int64_t left = deadline - MonotonicNanos();
    if (left <= 0) return false;
    constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(left, kHour)));
  }
  return true;
}

void SelfMessages::Fail(const absl::Status& reason) {
  const std::lock_guard lock(mutex_);
  status_.Update(reason);
  changed_.notify_all();
}

}  // namespace tessera::collectives
