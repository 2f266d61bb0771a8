#include "collectives/host_memory/host_memory_engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives::host_memory {

namespace {

absl::Status OutOfRange(std::string_view name, int64_t value,
                        std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("tuning: ", name, " is ", value, "; ", allowed));
}

// Memory of the domain, freed by its holder.
class DomainMemory : public SharedMemory {
 public:
  DomainMemory(std::shared_ptr<Domain> domain, std::byte* memory, int64_t bytes)
      : domain_(std::move(domain)),
        bytes_(memory, static_cast<size_t>(bytes)) {}
  ~DomainMemory() override { domain_->Free(bytes_.data()); }
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Domain> domain_;
  std::span<std::byte> bytes_;
};

int64_t IndexOf(std::span<const int64_t> members, int64_t rank) {
  return std::find(members.begin(), members.end(), rank) - members.begin();
}

// A short sleep, so that polling does not slow down the ranks that it waits
// for.
void PauseLong() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// Distinguishes the announcements of different groups.
uint64_t AnnouncementKey(DomainOffset parent, uint32_t group) {
  const uint64_t key = parent * 0x9e3779b97f4a7c15ULL ^ uint64_t { group }
                                                            << 20;
  return key == 0 ? 1 : key;
}

}  // namespace

absl::Status ValidateTuning(const Tuning& tuning, int64_t ranks) {
  if (tuning.piece_bytes % 64 != 0 || tuning.piece_bytes < 64 * ranks) {
    return OutOfRange("piece_bytes", tuning.piece_bytes,
                      absl::StrCat("a multiple of 64, at least ", 64 * ranks,
                                   " for ", ranks, " ranks"));
  }
  // An all_reduce shows a piece before it finishes with the one two before.
  if (tuning.pieces < 3 || tuning.pieces > kMostPieces) {
    return OutOfRange("pieces", tuning.pieces,
                      absl::StrCat("3 to ", kMostPieces, " are allowed"));
  }
  if (tuning.one_shot_bytes < 0 || tuning.one_shot_bytes > tuning.piece_bytes) {
    return OutOfRange("one_shot_bytes", tuning.one_shot_bytes,
                      "0 to piece_bytes are allowed");
  }
  if (tuning.channel_bytes < 128 || tuning.channel_bytes % 64 != 0) {
    return OutOfRange("channel_bytes", tuning.channel_bytes,
                      "a multiple of 64, at least 128");
  }
  if (tuning.zero_copy_bytes < 0 || tuning.peer_copy_bytes < 0) {
    return OutOfRange("zero_copy_bytes or peer_copy_bytes",
                      std::min(tuning.zero_copy_bytes, tuning.peer_copy_bytes),
                      "at least 0");
  }
  if (tuning.place_skips < 0 || tuning.place_skips > 255) {
    return OutOfRange("place_skips", tuning.place_skips,
                      "0 to 255 are allowed");
  }
  if (tuning.processors < 0) {
    return OutOfRange("processors", tuning.processors, "at least 0");
  }
  if (tuning.spins < 1 || tuning.yield_us < 0) {
    return OutOfRange("spins or yield_us",
                      std::min(tuning.spins, tuning.yield_us),
                      "at least 1 and 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupBlock> CreateGroupBlock(Domain& domain, int64_t ranks,
                                            uint32_t group,
                                            const Tuning& tuning) {
  TESSERA_RETURN_IF_ERROR(ValidateTuning(tuning, ranks));
  const int64_t note_slots =
      group == kWorldGroup ? kWorldNoteSlots : kGroupNoteSlots;
  TESSERA_ASSIGN_OR_RETURN(std::byte* const memory,
                           domain.Allocate(GroupBlockBytes(ranks, note_slots)),
                           Annotate(_, "the control block of a group"));
  GroupHeader& header = *reinterpret_cast<GroupHeader*>(memory);
  header.note_slots = note_slots;
  header.magic = kMagic;
  header.size = ranks;
  header.group = group;
  header.tuning = tuning;
  return GroupBlock(memory, ranks);
}

HostMemoryEngine::HostMemoryEngine(std::string name,
                                   std::shared_ptr<Domain> domain,
                                   GroupBlock block,
                                   std::vector<int64_t> members,
                                   bool owns_block)
    : name_(std::move(name)), generation_(ProcessGeneration()) {
  const int64_t rank = IndexOf(members, domain->rank());
  group_ = std::make_unique<Group>(std::move(domain), block, std::move(members),
                                   rank, owns_block);
  collectives_ = std::make_unique<HostMemoryCollectives>(*group_);
  transport_ = std::make_unique<HostMemoryTransport>(*group_);
}

HostMemoryEngine::~HostMemoryEngine() {
  if (ProcessGeneration() != generation_) {
    // In a forked child the group belongs to the parent, which has not left it.
    static_cast<void>(transport_.release());
    static_cast<void>(collectives_.release());
    static_cast<void>(group_.release());
    return;
  }
  group_->Depart();
}

absl::StatusOr<std::unique_ptr<SharedMemory>> HostMemoryEngine::AllocateShared(
    int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot allocate ", bytes,
                     " bytes of shared memory; the size must be at least 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::byte* const memory,
      group_->domain().Allocate(std::max<int64_t>(bytes, 1)));
  return std::make_unique<DomainMemory>(group_->shared_domain(), memory, bytes);
}

std::vector<PeerReport> HostMemoryEngine::Peers() const {
  std::vector<PeerReport> peers;
  for (int64_t peer = 0; peer < group_->size(); ++peer) {
    peers.push_back(group_->Report(peer, /*look_at_process=*/true));
  }
  return peers;
}

absl::Status HostMemoryEngine::Announce(const GroupBlock& block, uint64_t key,
                                        int64_t readers, int64_t deadline) {
  Domain& domain = group_->domain();
  Announcement* const table = domain.AnnouncementsOf(domain.rank());
  while (true) {
    for (int i = 0; i < kAnnouncements; ++i) {
      Announcement& entry = table[i];
      if (entry.key.load(std::memory_order_acquire) != 0) continue;
      entry.block.store(*domain.OffsetOf(block.start(), block.bytes()),
                        std::memory_order_relaxed);
      entry.readers_left.store(static_cast<uint32_t>(readers),
                               std::memory_order_relaxed);
      entry.key.store(key, std::memory_order_release);
      return absl::OkStatus();
    }
    if (MonotonicNanos() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("subgroup: ", kAnnouncements,
                       " other new groups still wait for their members; retry "
                       "or raise the timeout"));
    }
    PauseLong();
  }
}

absl::StatusOr<GroupBlock> HostMemoryEngine::AwaitBlock(Rank first,
                                                        uint64_t key,
                                                        int64_t ranks,
                                                        int64_t deadline) {
  Domain& domain = group_->domain();
  const int64_t owner = group_->members()[static_cast<size_t>(first.value())];
  Announcement* const table = domain.AnnouncementsOf(owner);
  for (int64_t round = 0;; ++round) {
    for (int i = 0; i < kAnnouncements; ++i) {
      Announcement& entry = table[i];
      if (entry.key.load(std::memory_order_acquire) != key) continue;
      const GroupBlock block(
          domain.At(entry.block.load(std::memory_order_relaxed)), ranks);
      if (entry.readers_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        entry.key.store(0, std::memory_order_release);
      }
      return block;
    }
    if (round % 64 != 63) {
      std::this_thread::yield();
      continue;
    }
    TESSERA_RETURN_IF_ERROR(group_->Whole());
    const PeerReport peer = group_->Report(first.value(), true);
    if (peer.state != PeerState::kAlive) {
      return absl::UnavailableError(
          absl::StrCat("subgroup: its first member, ", DescribePeer(peer, 0)));
    }
    if (MonotonicNanos() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("subgroup of ", ranks, " ranks: its first member, rank ",
                       first.value(), ", has not called"));
    }
    PauseLong();
  }
}

absl::StatusOr<std::unique_ptr<Engine>> HostMemoryEngine::CreateSubgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  Domain& domain = group_->domain();
  // Memory of earlier groups may be free by now.
  domain.Reclaim();
  const uint64_t key =
      AnnouncementKey(*domain.OffsetOf(group_->block().start(), 0), group);
  const auto ranks = static_cast<int64_t>(members.size());
  std::vector<int64_t> numbers;
  for (Rank member : members) {
    numbers.push_back(group_->members()[static_cast<size_t>(member.value())]);
  }
  const bool first = members.front() == rank();
  GroupBlock block;
  if (first) {
    TESSERA_ASSIGN_OR_RETURN(block, CreateGroupBlock(group_->domain(), ranks,
                                                     group, group_->tuning()));
    if (ranks > 1) {
      const absl::Status announced = Announce(block, key, ranks - 1, deadline);
      if (!announced.ok()) {
        group_->domain().Free(block.start());
        return announced;
      }
    }
  } else {
    TESSERA_ASSIGN_OR_RETURN(block,
                             AwaitBlock(members.front(), key, ranks, deadline));
  }
  return std::make_unique<HostMemoryEngine>(name_, group_->shared_domain(),
                                            block, std::move(numbers), first);
}

}  // namespace tessera::collectives::host_memory
