#include "collectives/shared_memory/shared_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/local/fd_passing.h"
#include "collectives/bootstrap/local/peer_process.h"
#include "collectives/direct/direct_engine.h"
#include "collectives/direct/domain.h"
#include "collectives/shared_memory/segment.h"
#include "collectives/shared_memory/slice_allocator.h"

namespace tessera::collectives {
namespace {

using direct::Announcement;
using direct::kAnnouncements;
using direct::Place;

constexpr uint64_t kSegmentMagic = 0x31304d4853535354;  // "TSSSHM01"

// At the beginning of the segment, by rank 0; the first bytes of its slice.
struct SegmentHeader {
  uint64_t magic;
  Place announcements;             // kAnnouncements for each rank.
  Place world;                     // The block of the world's group.
  std::atomic<uint32_t> attached;  // Ranks that need the store no more.
};

// Where a rank's slice begins to be used. Ranks allocate alike, and buffers of
// all ranks at one distance of a large power of two share few places of the
// caches and of the TLB: 8 ranks that read and write 16 of them at once lose a
// quarter of their speed. An odd number of pages more for each rank parts them.
int64_t FirstUsed(const Segment& segment, int64_t rank) {
  constexpr int64_t kStaggerBytes = 17 * 4096;
  constexpr int64_t kStaggers = 64;
  return segment.SliceStart(rank) + rank % kStaggers * kStaggerBytes;
}

class SharedMemoryDomain : public direct::Domain {
 public:
  SharedMemoryDomain(Segment segment, const Store& store,
                     std::vector<PeerProcess> peers, int64_t memory_limit)
      : segment_(std::move(segment)),
        allocator_(segment_.fd(), segment_.base(),
                   FirstUsed(segment_, store.rank().value()),
                   segment_.SliceStart(store.rank().value() + 1), memory_limit),
        rank_(store.rank().value()),
        size_(store.size()),
        peers_(std::move(peers)) {
    base_ = reinterpret_cast<uintptr_t>(segment_.base());
    end_ = base_ + static_cast<uintptr_t>(segment_.bytes());
  }

  // Watches the processes of all ranks.
  absl::Status Watch() {
    for (const PeerProcess& peer : peers_) {
      absl::StatusOr<UniqueFd> pidfd = OpenPidFd(peer);
      if (!pidfd.ok() && !absl::IsNotFound(pidfd.status())) {
        return pidfd.status();
      }
      // Not found: it is dead already.
      pidfds_.push_back(pidfd.ok() ? *std::move(pidfd) : UniqueFd());
    }
    return absl::OkStatus();
  }

  SegmentHeader& header() const {
    return *reinterpret_cast<SegmentHeader*>(segment_.base());
  }
  void UseProcessors(int64_t processors) { processors_ = processors; }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    return allocator_.Allocate(bytes);
  }
  void Free(std::byte* memory) override { allocator_.Free(memory); }
  Announcement* AnnouncementsOf(int64_t rank) override {
    return reinterpret_cast<Announcement*>(At(header().announcements)) +
           rank * kAnnouncements;
  }
  bool IsDead(int64_t rank) override {
    const UniqueFd& pidfd = pidfds_[static_cast<size_t>(rank)];
    return !pidfd.valid() || collectives::IsDead(pidfd);
  }
  std::string HostOf(int64_t rank) const override {
    return peers_[static_cast<size_t>(rank)].host_name;
  }
  int64_t PidOf(int64_t rank) const override {
    return peers_[static_cast<size_t>(rank)].pid;
  }
  int64_t processors() const override { return processors_; }

 private:
  const Segment segment_;
  SliceAllocator allocator_;
  const int64_t rank_;
  const int64_t size_;
  const std::vector<PeerProcess> peers_;
  std::vector<UniqueFd> pidfds_;
  int64_t processors_ = 1;
};

// The processors that this process may run on, as text.
std::string AffinityText() { return absl::StrJoin(AllowedProcessors(), ","); }

// How many processors the ranks have together: bound to one each, they still
// have one each. A quota of this process's cgroup is taken for everybody's.
int64_t ProcessorsTogether(const std::vector<std::string>& affinities) {
  std::set<std::string_view> all;
  for (const std::string& affinity : affinities) {
    for (std::string_view processor : absl::StrSplit(affinity, ',')) {
      all.insert(processor);
    }
  }
  const auto mine = static_cast<int64_t>(AllowedProcessors().size());
  const int64_t quota = AvailableProcessors();
  const auto together = static_cast<int64_t>(all.size());
  return quota < mine ? std::min(quota, together) : together;
}

absl::Status CheckOneHost(std::span<const PeerProcess> peers) {
  for (size_t r = 1; r < peers.size(); ++r) {
    if (peers[r].host == peers[0].host) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "shared memory: rank ", r, " (host ", peers[r].host_name,
        ") and rank 0 (host ", peers[0].host_name,
        ") are not on one host or in one container; use mpi, gloo or nccl"));
  }
  return absl::OkStatus();
}

// Every rank tells how it fared; an error of one is an error on all.
absl::StatusOr<std::vector<std::string>> Agree(Store& store,
                                               const std::string& name,
                                               const absl::Status& mine,
                                               std::string_view text,
                                               absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      AllGather(store, name,
                mine.ok() ? absl::StrCat("+", text)
                          : absl::StrCat("-", mine.message().substr(0, 1000)),
                deadline));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].substr(0, 1) == "+") continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", r, ": ", all[r].substr(1)));
  }
  for (std::string& answer : all) answer.erase(0, 1);
  return all;
}

// What rank 0 prepares for all: announcements and the world's block.
absl::Status PrepareSegment(SharedMemoryDomain& domain, const Tuning& tuning) {
  constexpr uint32_t kWorldGroup = 1;
  // The first allocation is the segment's first bytes.
  TESSERA_ASSIGN_OR_RETURN(std::byte* const first,
                           domain.Allocate(sizeof(SegmentHeader)));
  if (first != reinterpret_cast<std::byte*>(&domain.header())) {
    return absl::InternalError("shared memory: the header is out of place");
  }
  const int64_t bytes = domain.size() * kAnnouncements *
                        static_cast<int64_t>(sizeof(Announcement));
  TESSERA_ASSIGN_OR_RETURN(std::byte* const announcements,
                           domain.Allocate(bytes));
  TESSERA_ASSIGN_OR_RETURN(
      const direct::GroupBlock world,
      direct::CreateGroupBlock(domain, domain.size(), kWorldGroup, tuning));
  SegmentHeader& header = domain.header();
  header.announcements = *domain.PlaceOf(announcements, bytes);
  header.world = *domain.PlaceOf(world.start(), 1);
  header.magic = kSegmentMagic;
  return absl::OkStatus();
}

// Returns when no rank needs the store any more: a rank may end at once.
absl::Status AwaitAttached(SharedMemoryDomain& domain, absl::Time deadline) {
  std::atomic<uint32_t>& attached = domain.header().attached;
  attached.fetch_add(1, std::memory_order_acq_rel);
  const auto all = static_cast<uint32_t>(domain.size());
  while (attached.load(std::memory_order_acquire) != all) {
    absl::SleepFor(absl::Microseconds(100));
    for (int64_t rank = 0; rank < domain.size(); ++rank) {
      if (!domain.IsDead(rank)) continue;
      if (attached.load(std::memory_order_acquire) == all) break;
      return absl::UnavailableError(absl::StrCat(
          "shared memory: rank ", rank, " (pid ", domain.PidOf(rank),
          ") died while the ranks were joining"));
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("shared memory: ", all - attached.load(), " of ", all,
                       " ranks have not joined"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SharedMemoryDomain>> OpenDomain(
    Store& store, const SharedMemoryOptions& options, UniqueFd file,
    std::vector<PeerProcess> peers) {
  TESSERA_ASSIGN_OR_RETURN(Segment segment,
                           Segment::Map(std::move(file), store.size()));
  auto domain = std::make_shared<SharedMemoryDomain>(
      std::move(segment), store, std::move(peers), options.memory_limit);
  TESSERA_RETURN_IF_ERROR(domain->Watch());
  if (store.rank() == Rank(0)) {
    TESSERA_RETURN_IF_ERROR(PrepareSegment(*domain, options.tuning));
  }
  return domain;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateSharedMemoryEngine(
    Store& store, const SharedMemoryOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  const std::string name = absl::StrCat("shared_memory/", options.name, "/");
  std::vector<Rank> everybody;
  for (int64_t r = 0; r < store.size(); ++r) everybody.push_back(Rank(r));
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<PeerProcess> peers,
      ExchangeProcesses(store, everybody, name + "processes", deadline));
  TESSERA_RETURN_IF_ERROR(CheckOneHost(peers));

  absl::StatusOr<UniqueFd> file = UniqueFd();
  if (store.rank() == Rank(0)) {
    file = CreateSegmentFile(store.size(), options.slice_bytes);
  }
  TESSERA_RETURN_IF_ERROR(
      Agree(store, name + "file", file.status(), "", deadline).status());
  TESSERA_ASSIGN_OR_RETURN(
      UniqueFd shared,
      ShareFd(store, everybody, name + "segment", *std::move(file), deadline));
  absl::StatusOr<std::shared_ptr<SharedMemoryDomain>> domain =
      OpenDomain(store, options, std::move(shared), std::move(peers));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> affinities,
      Agree(store, name + "mapped", domain.status(), AffinityText(), deadline));
  const SegmentHeader& header = (*domain)->header();
  if (header.magic != kSegmentMagic) {
    return absl::InternalError("shared memory: the segment has no header");
  }
  (*domain)->UseProcessors(ProcessorsTogether(affinities));
  TESSERA_RETURN_IF_ERROR(AwaitAttached(**domain, deadline));
  const direct::GroupBlock world((*domain)->At(header.world), store.size());
  std::vector<int64_t> members(static_cast<size_t>(store.size()));
  std::iota(members.begin(), members.end(), 0);
  const bool owns_block = store.rank() == Rank(0);
  return std::make_unique<direct::DirectEngine>("shared_memory",
                                                *std::move(domain), world,
                                                std::move(members), owns_block);
}

}  // namespace tessera::collectives
