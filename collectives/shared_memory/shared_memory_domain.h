// Segment: one memfd that all ranks of a world map, each with a slice of its
// own.
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

// A memfd with room for `ranks` slices of at most `slice_bytes`, fewer where
// this process may not have such a file or so many addresses. Sparse: it takes
// no memory yet. Sealed: it keeps its size, so that a mapping stays valid.
absl::StatusOr<UniqueFd> CreateSegmentFile(int64_t ranks, int64_t slice_bytes);

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // Maps all of the file, which `ranks` ranks share.
  static absl::StatusOr<Segment> Map(UniqueFd file, int64_t ranks);

  int fd() const { return file_.get(); }
  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }

  // Where a rank's slice begins, and its length.
  int64_t SliceStart(int64_t rank) const { return rank * slice_bytes_; }
  int64_t slice_bytes() const { return slice_bytes_; }

 private:
  UniqueFd file_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t slice_bytes_ = 0;
};

// SliceAllocator: memory from one rank's slice of a segment.
//
// Pages are reserved with fallocate before they are given out, so that a lack
// of memory is an error here and never a SIGBUS later; large ones go back to
// the machine when they are freed. Everything is zero when it is given out.
// Thread-safe.

class SliceAllocator {
 public:
  // Bytes [first, last) of the file `fd`, which is mapped at `base` and stays
  // so. At most `limit` bytes of it are reserved at a time. `first` is the
  // beginning of a page.
  SliceAllocator(int fd, std::byte* base, int64_t first, int64_t last,
                 int64_t limit);

  // `bytes` (at least 1) bytes, aligned to 64; from 256 KiB on to pages, from 2
  // MiB on whole huge pages after `first`. ResourceExhausted where the slice,
  // the limit or the machine's memory does not have them, naming how much is
  // held and free.
  absl::StatusOr<std::byte*> Allocate(int64_t bytes);
  void Free(std::byte* memory);

  // What is reserved at present.
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
  // Small ones: freed, by length; and what is left of the newest arena.
  std::map<int64_t, std::vector<int64_t>> free_small_;
  int64_t arena_next_ = 0;
  int64_t arena_end_ = 0;
};

// Reading the memory of another process, by the kernel: one copy and no memory
// in common (process_vm_readv(2)).

// Whether this process may read that of `pid`: both are of one user, and no
// setting (Yama's ptrace_scope, a seccomp filter) forbids it.
bool MayReadProcess(pid_t pid);

// Copies `bytes` bytes at `address` of the process to `to`. Unavailable where
// the process is gone or has no such memory; what is at `to` is then undefined.
absl::Status ReadProcess(pid_t pid, uintptr_t address, std::byte* to,
                         int64_t bytes);

// SharedMemoryDomain: the processes of a host that map one segment.

inline constexpr uint64_t kSegmentMagic = 0x31304d4853535354;  // "TSSSHM01"

// At the beginning of the segment, by rank 0; the first bytes of its slice.
struct SegmentHeader {
  uint64_t magic;
  host_memory::Place
      announcements;               // host_memory::kAnnouncements for each rank.
  host_memory::Place world;        // The block of the world's group.
  std::atomic<uint32_t> attached;  // Ranks that need the store no more.
};

class SharedMemoryDomain : public host_memory::Domain {
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
