#include "collectives/shared_memory/shared_memory_domain.h"

#include <algorithm>
#include <utility>

#include "collectives/shared_memory/read_process.h"

namespace tessera::collectives::internal {
namespace {

// Where a rank's slice begins to be used. Ranks allocate alike, and buffers of
// all ranks at one distance of a large power of two share few places of the
// caches and of the TLB: 8 ranks that read and write 16 of them at once lose a
// quarter of their speed. An odd number of pages more for each rank parts them.
int64_t FirstUsed(const Segment& segment, int64_t rank) {
  constexpr int64_t kStaggerBytes = 17 * 4096;
  constexpr int64_t kStaggers = 64;
  return segment.SliceStart(rank) + rank % kStaggers * kStaggerBytes;
}

}  // namespace

SharedMemoryDomain::SharedMemoryDomain(Segment segment, const Store& store,
                                       std::vector<PeerProcess> peers,
                                       int64_t memory_limit)
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

absl::Status SharedMemoryDomain::Watch() {
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

bool SharedMemoryDomain::MayReadPeers() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const PeerProcess& peer) {
    return MayReadProcess(peer.pid);
  });
}

direct::Announcement* SharedMemoryDomain::AnnouncementsOf(int64_t rank) {
  return reinterpret_cast<direct::Announcement*>(At(header().announcements)) +
         rank * direct::kAnnouncements;
}

bool SharedMemoryDomain::IsDead(int64_t rank) {
  const UniqueFd& pidfd = pidfds_[static_cast<size_t>(rank)];
  return !pidfd.valid() || collectives::IsDead(pidfd);
}

absl::Status SharedMemoryDomain::ReadPeer(int64_t rank, uintptr_t address,
                                          std::byte* to, int64_t bytes) {
  return ReadProcess(static_cast<pid_t>(PidOf(rank)), address, to, bytes);
}

std::string SharedMemoryDomain::HostOf(int64_t rank) const {
  return peers_[static_cast<size_t>(rank)].host_name;
}

int64_t SharedMemoryDomain::PidOf(int64_t rank) const {
  return peers_[static_cast<size_t>(rank)].pid;
}

}  // namespace tessera::collectives::internal
