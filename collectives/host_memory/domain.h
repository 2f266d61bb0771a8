// Domain, the set of ranks that can access each other's memory, and GroupBlock,
// the shared memory layout through which the ranks of one group synchronise.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/transport.h"
#include "collectives/host_memory/tuning.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives::host_memory {

// An offset in a domain's memory, valid on every rank; 0 is null.
using DomainOffset = uint64_t;

// The number of note slots, by which a writer may be ahead of the slowest
// reader. The world group has more slots, so that a root that only sends rarely
// waits for ranks that share its processor. Other groups have few, because
// there may be thousands of them.
inline constexpr int64_t kWorldNoteSlots = 64;
inline constexpr int64_t kGroupNoteSlots = 8;
inline constexpr int64_t kNoteBytes = 568;
inline constexpr int kMostPieces = 8;
inline constexpr int kHistory = 4;

// Packs the low half of a round's number and the fingerprint of its call into
// one word. Never 0, because fingerprints are never 0.
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

// A flag and a short payload. Up to 56 bytes share the flag's cache line, so a
// short message costs one transfer between caches.
struct alignas(64) NoteSlot {
  std::atomic<uint64_t> flag;
  std::byte payload[kNoteBytes];
};
static_assert(sizeof(NoteSlot) == 576);

// A signature that other ranks may read at any time. The first word (the
// sequence number) is written last and read before and after the others.
struct SharedSignature {
  std::atomic<uint64_t> words[4];
};

// A rank's current state, which others read only during long waits.
struct alignas(64) RankStatus {
  std::atomic<uint64_t>
      sequence;  // Sequence number of the last collective entered.
  std::atomic<uint32_t> phase;  // PhaseWord.
  std::atomic<uint32_t>
      departed;  // 1 after the rank has closed its communicator.
  std::atomic<uint64_t> window;  // Its DomainOffset; 0: not allocated yet.
  SharedSignature history[kHistory];
};

// One flag per piece of a window, set when the piece has been written.
struct alignas(64) PieceFlags {
  std::atomic<uint64_t> piece[kMostPieces];
};

struct alignas(64) Counter {
  std::atomic<uint64_t> value;
};

// The futex on which a rank sleeps.
struct alignas(64) Bell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> sleepers;
};

struct RankBlock {
  PieceFlags staged;    // The window holds this rank's input of the piece.
  PieceFlags combined;  // The window holds this rank's reduced slice.
  Counter notes_done;   // All notes of earlier rounds have been read.
  Counter pieces_done;  // All earlier pieces have been read.
  RankStatus status;
  Bell bell;
};

// The error that broke the group. Only the first rank that detects an error
// writes it.
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
  alignas(64) std::atomic<uint32_t> sleepers;  // Number of sleeping ranks.
  alignas(64) std::atomic<uint32_t> departed;  // Number of ranks that left.
  std::atomic<uint32_t>
      released;  // Number of ranks that stopped using the block.
  BrokenRecord broken;
};

// The id of the group of all ranks.
inline constexpr uint32_t kWorldGroup = 1;

inline constexpr uint64_t kMagic = 0x31304b4c42524754;  // "TGRBLK01"

// The DomainOffset of a rank's channel to another rank; 0: not allocated yet.
using ChannelOffset = std::atomic<uint64_t>;

constexpr int64_t ChannelOffsets(int64_t ranks) {
  return ranks * ranks * kLaneCountWithTags;
}

constexpr int64_t RoundToLine(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr int64_t GroupBlockBytes(int64_t ranks, int64_t note_slots) {
  return RoundToLine(sizeof(GroupHeader)) +
         ranks * static_cast<int64_t>(sizeof(RankBlock)) +
         ranks * note_slots * static_cast<int64_t>(sizeof(NoteSlot)) +
         RoundToLine(ChannelOffsets(ranks) *
                     static_cast<int64_t>(sizeof(ChannelOffset)));
}

// Accessors for the memory through which the ranks of one group synchronise.
// The header must already be initialised.
//
//   [GroupHeader][RankBlock of rank 0][RankBlock of rank 1]...
//   [notes of rank 0][notes of rank 1]...[channel offsets]
//
// Every word has one writer, and words written by different ranks never share a
// cache line. Counters only grow. A flag is stored with release (or stronger)
// and loaded with acquire; no other ordering is assumed.
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
    return channels_[(from * size_ + to) * kLaneCountWithTags +
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

// An entry of the table in which a rank publishes the blocks of groups that it
// created. Only that rank writes it, except for readers_left.
struct alignas(64) Announcement {
  std::atomic<uint64_t> key;  // 0: free.
  std::atomic<DomainOffset> block;
  std::atomic<uint32_t> readers_left;
};
inline constexpr int kAnnouncements = 32;

// Ranks that can access each other's memory: threads of one process, or
// processes of one host that map the same segment.
class Domain {
 public:
  virtual ~Domain() = default;

  // This rank's index in the domain, and the number of ranks.
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // The DomainOffset of `memory`; nullopt if other ranks cannot access it.
  std::optional<DomainOffset> OffsetOf(const void* memory,
                                       int64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if (address < base_ || address >= end_ ||
        static_cast<uint64_t>(bytes) > end_ - address) {
      return std::nullopt;
    }
    return address - base_;
  }
  // Like OffsetOf for a user's buffer; nullopt if the domain does not use user
  // buffers directly.
  std::optional<DomainOffset> UserOffsetOf(const void* memory,
                                           int64_t bytes) const {
    if (!reaches_user_memory_) return std::nullopt;
    return OffsetOf(memory, bytes);
  }
  std::byte* At(DomainOffset offset) const {
    return reinterpret_cast<std::byte*>(base_ + offset);
  }

  // Allocates zeroed memory that all ranks can access, aligned to 64 bytes. The
  // rank that allocated it frees it, after every rank has stopped using it.
  // Thread-safe.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;

  // Called when this rank leaves a group. Frees `memory`, and `block` if this
  // rank allocated it, once every rank of the group has left, because others
  // may read them until then: immediately or in a later Reclaim. Does not wait.
  // Thread-safe.
  void Retire(const GroupBlock& block, bool owns_block,
              std::vector<std::byte*> memory);

  // Frees retired memory that every rank has stopped reading. Thread-safe.
  void Reclaim();

  // The kAnnouncements entries of a rank.
  virtual Announcement* AnnouncementsOf(int64_t rank) = 0;

  // Returns true if the rank's process has ended. Makes a system call.
  virtual bool IsDead(int64_t rank) = 0;

  // True if every rank can read every other rank's private memory (ReadPeer).
  // Equal on all ranks.
  virtual bool ReadsPeers() const { return false; }
  // Copies `bytes` bytes at `address` of a rank's process to `to`. Requires
  // ReadsPeers(). Unavailable if the process has ended or the range is not
  // mapped.
  virtual absl::Status ReadPeer(int64_t /*rank*/, uintptr_t /*address*/,
                                std::byte* /*to*/, int64_t /*bytes*/) {
    return absl::UnimplementedError("ranks do not read each other's memory");
  }

  // The host and process id of a rank, for error messages.
  virtual std::string HostOf(int64_t rank) const = 0;
  virtual int64_t PidOf(int64_t rank) const = 0;

  // The number of processors that the ranks of this domain can use at once.
  // Equal on all ranks.
  virtual int64_t processors() const = 0;

 private:
  // The memory of a group that this rank has left.
  struct Retired {
    GroupBlock block;
    bool owns_block = false;
    bool released = false;  // The memory is freed; the block is not yet.
    std::vector<std::byte*> memory;
  };
  bool TryFree(Retired& retired);

  std::mutex retired_mutex_;
  std::vector<Retired> retired_;

 protected:
  uintptr_t base_ = 0;
  uintptr_t end_ = 0;
  bool reaches_user_memory_ = true;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_
