#include "collectives/host_memory/notes.h"

#include <algorithm>

namespace tessera::collectives::direct {

absl::Status Notes::AwaitAll(OperationContext& context, uint32_t fingerprint) {
  // All lines are asked for at once; then each is waited for.
  for (int64_t peer = 0; peer < group_.size(); ++peer) {
    __builtin_prefetch(&SlotOf(peer));
  }
  int64_t next = 0;
  const int64_t size = group_.size();
  uint64_t seen = 0;
  TESSERA_RETURN_IF_ERROR(group_.Await(
      context,
      [&] {
        for (; next < size; ++next) {
          seen = SlotOf(next).flag.load(std::memory_order_seq_cst);
          if (!IsRound(seen, round_)) return false;
          if (FingerprintIn(seen) != fingerprint) return true;
        }
        return true;
      },
      [&](std::vector<int64_t>& missing) {
        ListMissing(next, size, missing);
      }));
  return next == size ? absl::OkStatus() : group_.Mismatch(context, next);
}

void Notes::ListMissing(int64_t from, int64_t to,
                        std::vector<int64_t>& missing) const {
  for (int64_t peer = from; peer < to; ++peer) {
    if (!IsRound(SlotOf(peer).flag.load(std::memory_order_seq_cst), round_)) {
      missing.push_back(peer);
    }
  }
}

absl::Status Notes::AwaitFreeSlot(OperationContext& context) {
  const auto done = [&](int64_t peer) {
    return group_.of(peer).notes_done.value.load(std::memory_order_seq_cst);
  };
  const uint64_t needed = round_ - slots_ + 1;
  int64_t next = 0;
  uint64_t slowest = round_;
  TESSERA_RETURN_IF_ERROR(group_.Await(
      context,
      [&] {
        for (; next < group_.size(); ++next) {
          if (next == group_.rank()) continue;
          const uint64_t rounds = done(next);
          if (rounds < needed) return false;
          slowest = std::min(slowest, rounds);
        }
        return true;
      },
      [&](std::vector<int64_t>& missing) {
        for (int64_t peer = 0; peer < group_.size(); ++peer) {
          if (peer != group_.rank() && done(peer) < needed) {
            missing.push_back(peer);
          }
        }
      }));
  safe_round_ = slowest + slots_;
  return absl::OkStatus();
}

}  // namespace tessera::collectives::direct
