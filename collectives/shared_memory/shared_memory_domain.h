// SharedMemoryDomain: the processes of a host that map one segment. Also
// Segment and SliceAllocator, which manage the segment's memory.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store.h"
#include "collectives/host_memory/domain.h"

namespace tessera::collectives {

// Creates a memfd with `ranks` slices of at most `slice_bytes`, less if this
// process may not have such a large file or mapping. It is sparse (uses no
// memory yet) and sealed (keeps its size, so mappings stay valid).
absl::StatusOr<UniqueFd> CreateSegmentFile(int64_t ranks, int64_t slice_bytes);

// A memfd that all ranks of a world map; each rank owns one slice.
class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // Maps the whole file, which `ranks` ranks share.
  static absl::StatusOr<Segment> Map(UniqueFd file, int64_t ranks);

  int fd() const { return file_.get(); }
  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }

  // The offset of a rank's slice, and its length.
  int64_t SliceStart(int64_t rank) const { return rank * slice_bytes_; }
  int64_t slice_bytes() const { return slice_bytes_; }

 private:
  UniqueFd file_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t slice_bytes_ = 0;
};

// Allocates memory in one rank's slice of a segment.
//
// Pages are reserved with fallocate, so that a lack of memory is an error here
// and never a SIGBUS later. Large blocks are returned to the system when freed.
// Memory is zeroed. Thread-safe.
class SliceAllocator {
 public:
  // Manages bytes [first, last) of the file `fd`, which must stay mapped at
  // `base`. Reserves at most `limit` bytes. `first` must be page-aligned.
  SliceAllocator(int fd, std::byte* base, int64_t first, int64_t last,
                 int64_t limit);

  // Allocates `bytes` >= 1 bytes, aligned to 64; from 256 KiB on to pages, from
  // 2 MiB on to huge pages relative to `first`. ResourceExhausted if the slice,
  // the limit or the system's memory is exhausted; the message says how much is
  // used and free.
  absl::StatusOr<std::byte*> Allocate(int64_t bytes);
  void Free(std::byte* memory);

  // The number of reserved bytes.
  int64_t reserved_bytes() const;

 private:
  absl::StatusOr<int64_t> AllocateSmall(int64_t bytes);
  absl::StatusOr<int64_t> AllocateLarge(int64_t bytes);
  absl::Status Reserve(int64_t offset, int64_t bytes);
  void Return(int64_t offset, int64_t bytes);

  const int fd_;
  std::byte* const base_;
  const int64_t first_;
  const int64_t limit_;

  mutable std::mutex mutex_;
  int64_t reserved_ = 0;
  std::map<int64_t, int64_t> free_ranges_;  // Offset: length; never adjacent.
  std::map<int64_t, int64_t> used_;         // Offset: length.
  // Small blocks: freed ones by length, and the rest of the newest arena.
  std::map<int64_t, std::vector<int64_t>> free_small_;
  int64_t arena_next_ = 0;
  int64_t arena_end_ = 0;
};

// Returns true if this process may read the memory of `pid` through the kernel
// (process_vm_readv(2)): both belong to one user, and no setting (Yama's
// ptrace_scope, a seccomp filter) forbids it.
bool MayReadProcess(pid_t pid);

// Copies `bytes` bytes at `address` of the process to `to`. Unavailable if the
// process has ended or the range is not mapped; in this case `to` is undefined.
absl::Status ReadProcess(pid_t pid, uintptr_t address, std::byte* to,
                         int64_t bytes);

inline constexpr uint64_t kSegmentMagic = 0x31304d4853535354;  // "TSSSHM01"

// The header at the start of the segment, written by rank 0.
struct SegmentHeader {
  uint64_t magic;
  host_memory::DomainOffset
      announcements;  // host_memory::kAnnouncements for each rank.
  host_memory::DomainOffset world;  // The block of the world's group.
  std::atomic<uint32_t> attached;   // Ranks that no longer need the store.
};

class SharedMemoryDomain : public host_memory::Domain {
 public:
  // `peers`: the processes of all ranks; `rank` is this one's.
  SharedMemoryDomain(Segment segment, int64_t rank,
                     std::vector<PeerProcess> peers, int64_t memory_limit);

  // Opens descriptors of all ranks' processes, for IsDead.
  absl::Status Watch();

  // True if this process may read the memory of all others.
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
  host_memory::Announcement* AnnouncementsOf(int64_t rank) override;
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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_DOMAIN_H_
