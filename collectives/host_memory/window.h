// Exchange of data through shared memory: Notes for short messages, Window for
// pieces of large buffers.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/host_memory/group.h"

namespace tessera::collectives::host_memory {

// Messages of up to kNoteBytes to all ranks, each stored behind its own flag.
//
//   notes.Exchange(context, fingerprint, payload);  // All write and await all.
//   notes.Of(2);                                    // Rank 2's payload.
//   notes.FinishRound();                            // Done reading.
//
// All ranks go through the same rounds. In a round either every rank calls
// Exchange, or a rank may write a note, await some, or do neither. A writer may
// be ahead of the slowest reader by the number of slots.
//
// The floor of an exchange is the way of one cache line from the core of the
// last rank to each other core, and of the lines behind the first, which move
// together: while ranks wait, their next notes return to their own caches, and
// no other word is shared. A rank that has seen all notes of a round knows that
// all ranks have read the rounds before it.
class Notes {
 public:
  explicit Notes(Group& group)
      : group_(group),
        slots_(static_cast<uint64_t>(group.block().header().note_slots)) {}

  // Publishes at most kNoteBytes bytes as this rank's note of the round.
  // `fingerprint` identifies the call.
  absl::Status Write(OperationContext& context, uint32_t fingerprint,
                     std::span<const std::byte> payload) {
    TESSERA_RETURN_IF_ERROR(
        Store(context, fingerprint, payload, std::memory_order_seq_cst));
    group_.Wake();
    return absl::OkStatus();
  }

  // Publishes this rank's note and waits for those of all ranks.
  absl::Status Exchange(OperationContext& context, uint32_t fingerprint,
                        std::span<const std::byte> payload) {
    TESSERA_RETURN_IF_ERROR(
        Store(context, fingerprint, payload, std::memory_order_release));
    OwnNextNote(payload.size());
    exchanged_round_ = round_;
    TESSERA_RETURN_IF_ERROR(AwaitAll(context, fingerprint));
    // The lines behind the flags, all at once.
    for (int64_t peer = 0; peer < group_.size(); ++peer) {
      for (size_t at = 64; at < sizeof(uint64_t) + payload.size(); at += 64) {
        __builtin_prefetch(Of(peer) + at - sizeof(uint64_t));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Await(OperationContext& context, uint32_t fingerprint,
                     int64_t peer) {
    const std::atomic<uint64_t>& flag = SlotOf(peer).flag;
    uint64_t seen = 0;
    TESSERA_RETURN_IF_ERROR(group_.Await(
        context,
        [&] {
          seen = flag.load(std::memory_order_seq_cst);
          return IsRound(seen, round_);
        },
        [&](std::vector<int64_t>& missing) {
          ListMissing(peer, peer + 1, missing);
        }));
    if (FingerprintIn(seen) == fingerprint) return absl::OkStatus();
    return group_.Mismatch(context, peer);
  }

  absl::Status AwaitAll(OperationContext& context, uint32_t fingerprint);

  const std::byte* Of(int64_t peer) const { return SlotOf(peer).payload; }

  void FinishRound() {
    if (exchanged_round_ == round_++) {
      safe_round_ = exchanged_round_ + slots_;
      return;
    }
    group_.mine().notes_done.value.store(round_, std::memory_order_seq_cst);
    // Only a writer that waits for a free slot sleeps on this counter.
    group_.Wake();
  }

 private:
  // Stores this rank's note, and then its flag with `order`.
  absl::Status Store(OperationContext& context, uint32_t fingerprint,
                     std::span<const std::byte> payload,
                     std::memory_order order) {
    if (round_ >= safe_round_) {
      TESSERA_RETURN_IF_ERROR(AwaitFreeSlot(context));
    }
    NoteSlot& slot = SlotOf(group_.rank());
    if (!payload.empty()) {
      std::memcpy(slot.payload, payload.data(), payload.size());
    }
    slot.flag.store(FlagOf(round_, fingerprint), order);
    return absl::OkStatus();
  }

  NoteSlot& SlotOf(int64_t peer) const {
    return group_.block().notes(peer)[round_ % slots_];
  }
  // While this rank waits, the cache lines of its next note, as long as this
  // one, move from the caches of their last readers to its own.
  void OwnNextNote(size_t bytes) {
    const auto* const next = reinterpret_cast<const std::byte*>(
        &group_.block().notes(group_.rank())[(round_ + 1) % slots_]);
    for (size_t at = 0; at < sizeof(uint64_t) + bytes; at += 64) {
#if defined(__x86_64__)
      asm volatile("prefetchw %0" : : "m"(next[at]));
#else
      __builtin_prefetch(next + at, /*rw=*/1);
#endif
    }
  }
  absl::Status AwaitFreeSlot(OperationContext& context);
  void ListMissing(int64_t from, int64_t to,
                   std::vector<int64_t>& missing) const;

  Group& group_;
  const uint64_t slots_;
  uint64_t round_ = 1;
  uint64_t exchanged_round_ = 0;  // The round of the last exchange.
  // All ranks have read the slots of rounds before this.
  uint64_t safe_round_ = slots_;
};

// Memory through which a rank shows other ranks pieces of buffers that they
// cannot access.
//
// A window has Tuning::pieces slots, each for one piece of input and one piece
// of results. Piece numbers only grow and are equal on all ranks. A slot is
// reused after every rank has finished with it.
class Window {
 public:
  explicit Window(Group& group) : group_(group) {}
  // Frees the memory once all ranks have left the group.
  ~Window();

  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int64_t piece_bytes() const { return group_.tuning().piece_bytes; }

  // The piece size for a message of `bytes` bytes. Ranks that run concurrently
  // use several pieces, to overlap writing and reading; ranks that share
  // processors use as few as possible, because every piece costs a context
  // switch.
  int64_t PieceFor(int64_t bytes) const {
    constexpr int64_t kPiecesOfMessage = 4;
    constexpr int64_t kLeast = 8 << 10;
    if (group_.crowded()) return piece_bytes();
    return std::clamp(RoundToLine(bytes / kPiecesOfMessage),
                      std::min(kLeast, piece_bytes()), piece_bytes());
  }

  // Waits until all ranks have finished with the piece that used the slot of
  // `piece` before. Allocates the window on the first call.
  absl::Status AwaitFree(OperationContext& context, uint64_t piece);
  std::byte* MyInput(uint64_t piece) const { return memory_ + Offset(piece); }
  std::byte* MyResult(uint64_t piece) const {
    return memory_ + Offset(piece) + piece_bytes();
  }

  // Publish this rank's input or result of a piece.
  void ShowInput(uint64_t piece, uint32_t fingerprint) {
    Show(group_.mine().staged, piece, fingerprint);
  }
  void ShowResult(uint64_t piece, uint32_t fingerprint) {
    Show(group_.mine().combined, piece, fingerprint);
  }

  // Wait until `peer` has published its input or result of a piece.
  absl::Status AwaitInput(OperationContext& context, uint64_t piece,
                          uint32_t fingerprint, int64_t peer) {
    return AwaitFlag(context, &RankBlock::staged, piece, fingerprint, peer);
  }
  absl::Status AwaitResult(OperationContext& context, uint64_t piece,
                           uint32_t fingerprint, int64_t peer) {
    return AwaitFlag(context, &RankBlock::combined, piece, fingerprint, peer);
  }
  const std::byte* InputOf(int64_t peer, uint64_t piece) {
    return MemoryOf(peer) + Offset(piece);
  }
  const std::byte* ResultOf(int64_t peer, uint64_t piece) {
    return MemoryOf(peer) + Offset(piece) + piece_bytes();
  }

  // This rank has finished with all pieces up to and including `piece`.
  void Finish(uint64_t piece) {
    group_.mine().pieces_done.value.store(piece + 1, std::memory_order_seq_cst);
    group_.Wake();
  }

 private:
  uint64_t Pieces() const {
    return static_cast<uint64_t>(group_.tuning().pieces);
  }
  int64_t Offset(uint64_t piece) const {
    return static_cast<int64_t>(piece % Pieces()) * 2 * piece_bytes();
  }
  absl::Status Allocate();
  void Show(PieceFlags& flags, uint64_t piece, uint32_t fingerprint);
  absl::Status AwaitFlag(OperationContext& context,
                         PieceFlags RankBlock::*flags, uint64_t piece,
                         uint32_t fingerprint, int64_t peer);
  const std::byte* MemoryOf(int64_t peer);

  Group& group_;
  std::byte* memory_ = nullptr;
  uint64_t safe_piece_ = 0;  // Slots of earlier pieces are free.
  std::vector<const std::byte*> peers_;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_
