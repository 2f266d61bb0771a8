// GroupBlock: the memory that the ranks of a group share to synchronise.
//
// Every word has one writer, and words that one rank writes do not share a
// cache line with those of another. Counters only grow. What a flag's release
// publishes, its acquire makes visible; nothing else orders anything.
//
//   [GroupHeader][RankBlock of rank 0][RankBlock of rank 1]...
//   [notes of rank 0][notes of rank 1]...[channel offsets]
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_LAYOUT_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/engine/transport.h"
#include "collectives/host_memory/tuning.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives::direct {

// The name of memory that all ranks reach (domain.h); 0 is nowhere.
using Place = uint64_t;

// How many rounds of notes a writer may be ahead of the slowest reader: in the
// world, whose memory is paid for once, so many that a root which only sends
// waits seldom for ranks that share its processor; fewer in other groups, of
// which there may be thousands.
inline constexpr int64_t kWorldNoteSlots = 64;
inline constexpr int64_t kGroupNoteSlots = 8;
inline constexpr int64_t kNoteBytes = 312;
inline constexpr int kMostPieces = 8;
inline constexpr int kHistory = 4;

// The low half of a round's number and the fingerprint of its call, in one
// word: never 0, for a fingerprint is not.
constexpr uint64_t FlagOf(uint64_t round, uint32_t fingerprint) {
  return round << 32 | fingerprint;
}
constexpr bool IsRound(uint64_t flag, uint64_t round) {
  return flag != 0 &&
         static_cast<uint32_t>(flag >> 32) == static_cast<uint32_t>(round);
}
constexpr uint32_t FingerprintIn(uint64_t flag) {
  return static_cast<uint32_t>(flag);
}

// A few bytes behind their own flag: one line for up to 56 bytes, so that a
// short message costs one transfer between caches.
struct alignas(64) NoteSlot {
  std::atomic<uint64_t> flag;
  std::byte payload[kNoteBytes];
};
static_assert(sizeof(NoteSlot) == 320);

// A signature that others may read at any time: words, and its sequence number
// before and after them.
struct SharedSignature {
  std::atomic<uint64_t> words[4];
};

// What a rank tells about itself, read only when somebody waits for long.
struct alignas(64) RankStatus {
  std::atomic<uint64_t> sequence;  // Of the collective that it entered last.
  std::atomic<uint32_t> phase;     // PhaseWord.
  std::atomic<uint32_t> departed;  // 1 when it has closed its communicator.
  std::atomic<uint64_t> window;    // Where its window is; 0: none yet.
  SharedSignature history[kHistory];
};

// One flag for each piece of a window: its contribution is there.
struct alignas(64) PieceFlags {
  std::atomic<uint64_t> piece[kMostPieces];
};

struct alignas(64) Counter {
  std::atomic<uint64_t> value;
};

// What a sleeping rank waits on.
struct alignas(64) Bell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> sleepers;
};

struct RankBlock {
  PieceFlags staged;    // This rank's input of a piece is in its window.
  PieceFlags combined;  // Its slice of a piece is combined.
  Counter notes_done;   // It has read all notes of the rounds before this.
  Counter pieces_done;  // And all windows' pieces.
  RankStatus status;
  Bell bell;
};

// Why the group is broken: written once, by whoever notices first.
struct alignas(64) BrokenRecord {
  static constexpr uint32_t kWhole = 0, kBeingWritten = 1, kBroken = 2;
  std::atomic<uint32_t> state;
  int32_t code;
  int32_t rank;
  uint32_t length;
  char text[2032];
};

struct GroupHeader {
  uint64_t magic;
  int64_t size;
  uint32_t group;
  int64_t note_slots;
  Tuning tuning;
  alignas(64) std::atomic<uint32_t> sleepers;  // Ranks that sleep.
  alignas(64) std::atomic<uint32_t> departed;  // Ranks that have left.
  std::atomic<uint32_t> released;              // And use this no more.
  BrokenRecord broken;
};

// The number of the group of all ranks.
inline constexpr uint32_t kWorldGroup = 1;

inline constexpr uint64_t kMagic = 0x31304b4c42524754;  // "TGRBLK01"

// Where a rank's channel to another one is; 0: none yet.
using ChannelOffset = std::atomic<uint64_t>;

constexpr int64_t ChannelOffsets(int64_t ranks) {
  return ranks * ranks * kLaneCount;
}

constexpr int64_t RoundToLine(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr int64_t GroupBlockBytes(int64_t ranks, int64_t note_slots) {
  return RoundToLine(sizeof(GroupHeader)) +
         ranks * static_cast<int64_t>(sizeof(RankBlock)) +
         ranks * note_slots * static_cast<int64_t>(sizeof(NoteSlot)) +
         RoundToLine(ChannelOffsets(ranks) *
                     static_cast<int64_t>(sizeof(ChannelOffset)));
}

// The parts of a block at `start`, whose header says how many notes it has.
class GroupBlock {
 public:
  GroupBlock() = default;
  GroupBlock(std::byte* start, int64_t ranks)
      : header_(reinterpret_cast<GroupHeader*>(start)),
        ranks_(reinterpret_cast<RankBlock*>(start +
                                            RoundToLine(sizeof(GroupHeader)))),
        notes_(reinterpret_cast<NoteSlot*>(ranks_ + ranks)),
        channels_(reinterpret_cast<ChannelOffset*>(
            notes_ + ranks * header_->note_slots)),
        size_(ranks) {}

  GroupHeader& header() const { return *header_; }
  RankBlock& rank(int64_t rank) const { return ranks_[rank]; }
  // The notes of a rank.
  NoteSlot* notes(int64_t rank) const {
    return notes_ + rank * header_->note_slots;
  }
  ChannelOffset& channel(int64_t from, int64_t to, Lane lane) const {
    return channels_[(from * size_ + to) * kLaneCount +
                     static_cast<int64_t>(lane)];
  }
  int64_t size() const { return size_; }
  int64_t bytes() const { return GroupBlockBytes(size_, header_->note_slots); }
  std::byte* start() const { return reinterpret_cast<std::byte*>(header_); }

 private:
  GroupHeader* header_ = nullptr;
  RankBlock* ranks_ = nullptr;
  NoteSlot* notes_ = nullptr;
  ChannelOffset* channels_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_LAYOUT_H_
