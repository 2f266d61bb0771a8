// Notes: short messages to all ranks of a group, each behind its own flag.
//
//   notes.Write(payload);                    // this rank's note of the round
//   notes.AwaitAll(context);                 // everybody's is there
//   notes.Of(2);                             // rank 2's payload
//   notes.FinishRound();                     // this rank has read what it
//   needs
//
// Every rank goes through the same rounds; in each it may write a note, or
// await some, or neither. A writer may be as many rounds ahead of the
// slowest reader as a rank has slots (layout.h).
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_NOTES_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_NOTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/host_memory/group.h"

namespace tessera::collectives::direct {

class Notes {
 public:
  explicit Notes(Group& group)
      : group_(group),
        slots_(static_cast<uint64_t>(group.block().header().note_slots)) {}

  // Publishes at most kNoteBytes bytes as this rank's note of the round.
  // `fingerprint` is that of the call.
  absl::Status Write(OperationContext& context, uint32_t fingerprint,
                     std::span<const std::byte> payload) {
    if (round_ >= safe_round_) {
      TESSERA_RETURN_IF_ERROR(AwaitFreeSlot(context));
    }
    NoteSlot& slot = SlotOf(group_.rank());
    if (!payload.empty()) {
      std::memcpy(slot.payload, payload.data(), payload.size());
    }
    slot.flag.store(FlagOf(round_, fingerprint), std::memory_order_seq_cst);
    group_.Wake();
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
    ++round_;
    group_.mine().notes_done.value.store(round_, std::memory_order_seq_cst);
    // Nobody sleeps for this but a writer that is far ahead.
    group_.Wake();
  }

 private:
  NoteSlot& SlotOf(int64_t peer) const {
    return group_.block().notes(peer)[round_ % slots_];
  }
  absl::Status AwaitFreeSlot(OperationContext& context);
  void ListMissing(int64_t from, int64_t to,
                   std::vector<int64_t>& missing) const;

  Group& group_;
  const uint64_t slots_;
  uint64_t round_ = 1;
  // Slots of rounds before this have been read by all.
  uint64_t safe_round_ = slots_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_NOTES_H_
