#include "collectives/host_memory/window.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::collectives::host_memory {

absl::Status Notes::AwaitAll(OperationContext& context, uint32_t fingerprint) {
  // Prefetch all flags, then wait for each.
  for (int64_t peer = 0; peer < group_.size(); ++peer) {
    __builtin_prefetch(&SlotOf(peer));
  }
  int64_t next = 0;
  const int64_t size = group_.size();
  uint64_t seen = 0;
  const auto ready = [&] {
    for (; next < size; ++next) {
      seen = SlotOf(next).flag.load(std::memory_order_seq_cst);
      if (!IsRound(seen, round_)) return false;
      if (FingerprintIn(seen) != fingerprint) return true;
    }
    return true;
  };
  const auto missing = [&](std::vector<int64_t>& ranks) {
    ListMissing(next, size, ranks);
  };
  TESSERA_RETURN_IF_ERROR(exchanged_round_ == round_
                              ? group_.AwaitEachOther(context, ready, missing)
                              : group_.Await(context, ready, missing));
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

Window::~Window() {
  if (memory_ != nullptr) group_.FreeLater(memory_);
}

absl::Status Window::Allocate() {
  const int64_t bytes = group_.tuning().pieces * 2 * piece_bytes();
  TESSERA_ASSIGN_OR_RETURN(
      memory_, group_.domain().Allocate(bytes),
      Annotate(_,
               "a window for ordinary buffers (reduce Tuning::piece_bytes "
               "or pieces to make it smaller)"));
  // Published to the peers by the first flag.
  group_.mine().status.window.store(*group_.domain().OffsetOf(memory_, bytes),
                                    std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Window::AwaitFree(OperationContext& context, uint64_t piece) {
  if (memory_ == nullptr) {
    const absl::Status status = Allocate();
    if (!status.ok()) return group_.Break(status);
  }
  if (piece < safe_piece_ + Pieces()) return absl::OkStatus();
  const auto done = [&](int64_t peer) {
    return group_.of(peer).pieces_done.value.load(std::memory_order_seq_cst);
  };
  const uint64_t needed = piece - Pieces() + 1;
  int64_t next = 0;
  uint64_t slowest = piece;
  TESSERA_RETURN_IF_ERROR(group_.Await(
      context,
      [&] {
        for (; next < group_.size(); ++next) {
          if (next == group_.rank()) continue;
          const uint64_t pieces = done(next);
          if (pieces < needed) return false;
          slowest = std::min(slowest, pieces);
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
  safe_piece_ = slowest;
  return absl::OkStatus();
}

void Window::Show(PieceFlags& flags, uint64_t piece, uint32_t fingerprint) {
  flags.piece[piece % Pieces()].store(FlagOf(piece, fingerprint),
                                      std::memory_order_seq_cst);
  group_.Wake();
}

absl::Status Window::AwaitFlag(OperationContext& context,
                               PieceFlags RankBlock::*flags, uint64_t piece,
                               uint32_t fingerprint, int64_t peer) {
  const std::atomic<uint64_t>& flag =
      (group_.of(peer).*flags).piece[piece % Pieces()];
  uint64_t seen = 0;
  TESSERA_RETURN_IF_ERROR(group_.Await(
      context,
      [&] {
        seen = flag.load(std::memory_order_seq_cst);
        return IsRound(seen, piece);
      },
      [&](std::vector<int64_t>& missing) {
        if (!IsRound(flag.load(std::memory_order_seq_cst), piece)) {
          missing.push_back(peer);
        }
      }));
  if (FingerprintIn(seen) == fingerprint) return absl::OkStatus();
  return group_.Mismatch(context, peer);
}

const std::byte* Window::MemoryOf(int64_t peer) {
  if (peers_.empty()) peers_.resize(static_cast<size_t>(group_.size()));
  const std::byte*& memory = peers_[static_cast<size_t>(peer)];
  if (memory == nullptr) {
    memory = group_.domain().At(
        group_.of(peer).status.window.load(std::memory_order_acquire));
  }
  return memory;
}

}  // namespace tessera::collectives::host_memory
