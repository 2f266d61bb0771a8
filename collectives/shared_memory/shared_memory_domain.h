// SharedMemoryDomain: the processes of a host that map one segment.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store.h"
#include "collectives/host_memory/domain.h"
#include "collectives/shared_memory/segment.h"
#include "collectives/shared_memory/slice_allocator.h"

namespace tessera::collectives::internal {

inline constexpr uint64_t kSegmentMagic = 0x31304d4853535354;  // "TSSSHM01"

// At the beginning of the segment, by rank 0; the first bytes of its slice.
struct SegmentHeader {
  uint64_t magic;
  direct::Place announcements;     // direct::kAnnouncements for each rank.
  direct::Place world;             // The block of the world's group.
  std::atomic<uint32_t> attached;  // Ranks that need the store no more.
};

class SharedMemoryDomain : public direct::Domain {
 public:
  SharedMemoryDomain(Segment segment, const Store& store,
                     std::vector<PeerProcess> peers, int64_t memory_limit);

  // Watches the processes of all ranks.
  absl::Status Watch();

  // Whether this process may read the memory of all others.
  bool MayReadPeers() const;

  SegmentHeader& header() const {
    return *reinterpret_cast<SegmentHeader*>(segment_.base());
  }
  void UseProcessors(int64_t processors) { processors_ = processors; }
  void UsePeerCopies(bool reads_peers) { reads_peers_ = reads_peers; }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    return allocator_.Allocate(bytes);
  }
  void Free(std::byte* memory) override { allocator_.Free(memory); }
  direct::Announcement* AnnouncementsOf(int64_t rank) override;
  bool IsDead(int64_t rank) override;
  bool ReadsPeers() const override { return reads_peers_; }
  absl::Status ReadPeer(int64_t rank, uintptr_t address, std::byte* to,
                        int64_t bytes) override;
  std::string HostOf(int64_t rank) const override;
  int64_t PidOf(int64_t rank) const override;
  int64_t processors() const override { return processors_; }

 private:
  const Segment segment_;
  SliceAllocator allocator_;
  const int64_t rank_;
  const int64_t size_;
  const std::vector<PeerProcess> peers_;
  std::vector<UniqueFd> pidfds_;
  int64_t processors_ = 1;
  bool reads_peers_ = false;
};

}  // namespace tessera::collectives::internal

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_
