#include "collectives/engine/library_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/engine/operation_context.h"

namespace tessera::collectives {

absl::Status CheckHeader(const MessageHeader& mine, Rank my_rank,
                         const MessageHeader& theirs, Rank their_rank) {
  if (mine.signature != theirs.signature) {
    return MismatchError(mine.signature, my_rank, theirs.signature, their_rank);
  }
  if (mine.bytes == theirs.bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", their_rank.value(), " sent ", theirs.bytes,
                   " bytes in ", DescribeSignature(theirs.signature), "; rank ",
                   my_rank.value(), " expects ", mine.bytes));
}

absl::Status CheckSignatures(std::span<const Signature> all, Rank my_rank) {
  const Signature& mine = all[static_cast<size_t>(my_rank.value())];
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == mine) continue;
    return MismatchError(mine, my_rank, all[r], Rank(static_cast<int64_t>(r)));
  }
  return absl::OkStatus();
}

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

absl::StatusOr<std::optional<Signature>> SelfMessages::Peek() const {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(status_);
  if (out_.empty()) return std::nullopt;
  return out_.front().signature;
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

absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateOrdinary(int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                           AllocateSharedFrom(HostMemory(), bytes));
  const std::span<std::byte> zeroed = memory->bytes();
  if (!zeroed.empty()) std::memset(zeroed.data(), 0, zeroed.size());
  return memory;
}

std::string SubgroupId(std::string_view id, std::span<const Rank> members,
                       uint32_t group) {
  std::string text = absl::StrCat(id, " ");
  for (const Rank member : members) absl::StrAppend(&text, member.value(), ",");
  return absl::StrCat(absl::Hex(Fnv1a(text), absl::kZeroPad16), "-", group);
}

absl::Time TimeOfDeadline(int64_t deadline) {
  return absl::Now() + absl::Nanoseconds(deadline - MonotonicNanos());
}

}  // namespace tessera::collectives
