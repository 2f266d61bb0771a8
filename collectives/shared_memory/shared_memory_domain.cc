#include "collectives/shared_memory/shared_memory_domain.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

constexpr int64_t kSmallestSlice = 16 << 20;
constexpr int64_t kSliceStep = 2 << 20;  // A huge page.

int64_t Limit(int resource) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<int64_t>::max();
  }
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

absl::Status Failed(std::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

void* MapFile(int fd, int64_t bytes) {
  return mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE, fd, 0);
}

// Returns true if this process can map `bytes` bytes.
bool CanMap(int fd, int64_t bytes) {
  void* const mapped = MapFile(fd, bytes);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, static_cast<size_t>(bytes));
  return true;
}

constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kLarge = 256 << 10;
constexpr int64_t kArena = 1 << 20;

int64_t RoundUp(int64_t bytes, int64_t step) {
  return (bytes + step - 1) / step * step;
}

int64_t FreeMemory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

// The first used offset of a rank's slice. All ranks allocate alike, and
// buffers whose addresses differ by a large power of two conflict in caches and
// TLB: 8 ranks that access 16 of them at once lose a quarter of their speed. An
// odd number of pages per rank avoids that.
int64_t FirstUsed(const Segment& segment, int64_t rank) {
  constexpr int64_t kStaggerBytes = 17 * 4096;
  constexpr int64_t kStaggers = 64;
  return segment.SliceStart(rank) + rank % kStaggers * kStaggerBytes;
}

}  // namespace

absl::StatusOr<UniqueFd> CreateSegmentFile(int64_t ranks, int64_t slice_bytes) {
  UniqueFd file(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Failed("memfd_create");
  // Exceeding RLIMIT_FSIZE would raise a signal instead of an error.
  const int64_t most =
      std::min(Limit(RLIMIT_FSIZE), Limit(RLIMIT_AS) / 4) / ranks;
  int64_t slice = std::min(slice_bytes, most) / kSliceStep * kSliceStep;
  for (; slice >= kSmallestSlice; slice = slice / 2 / kSliceStep * kSliceStep) {
    if (ftruncate(file.get(), ranks * slice) != 0) continue;
    if (!CanMap(file.get(), ranks * slice)) continue;
    if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      return Failed("sealing the segment");
    }
    return file;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: this process cannot map ", ranks, " slices of ",
      ByteSize(kSmallestSlice).ToString(),
      "; check the limits of address space and file size (ulimit -v, -f)"));
}

absl::StatusOr<Segment> Segment::Map(UniqueFd file, int64_t ranks) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) return Failed("fstat of the segment");
  Segment segment;
  void* const mapped = MapFile(file.get(), status.st_size);
  if (mapped == MAP_FAILED) {
    return Failed(
        absl::StrCat("mapping ", ByteSize(status.st_size).ToString()));
  }
  // Excludes the segment from core dumps.
  madvise(mapped, static_cast<size_t>(status.st_size), MADV_DONTDUMP);
  segment.file_ = std::move(file);
  segment.base_ = static_cast<std::byte*>(mapped);
  segment.bytes_ = status.st_size;
  segment.slice_bytes_ = segment.bytes_ / ranks;
  return segment;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(slice_bytes_, other.slice_bytes_);
  return *this;
}

SliceAllocator::SliceAllocator(int fd, std::byte* base, int64_t first,
                               int64_t last, int64_t limit)
    : fd_(fd), base_(base), first_(first), limit_(limit) {
  free_ranges_[first] = last - first;
}

int64_t SliceAllocator::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

absl::StatusOr<std::byte*> SliceAllocator::Allocate(int64_t bytes) {
  if (bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of shared memory; use at least 1"));
  }
  const std::lock_guard lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const int64_t offset,
                           bytes < kLarge
                               ? AllocateSmall(RoundUp(bytes, kLine))
                               : AllocateLarge(RoundUp(bytes, kPage)));
  return base_ + offset;
}

absl::StatusOr<int64_t> SliceAllocator::AllocateSmall(int64_t bytes) {
  std::vector<int64_t>& freed = free_small_[bytes];
  if (!freed.empty()) {
    const int64_t offset = freed.back();
    freed.pop_back();
    std::memset(base_ + offset, 0, static_cast<size_t>(bytes));
    used_[offset] = bytes;
    return offset;
  }
  if (arena_end_ - arena_next_ < bytes) {
    // The rest of the old arena is too small to keep.
    TESSERA_ASSIGN_OR_RETURN(arena_next_, AllocateLarge(kArena));
    used_.erase(arena_next_);
    arena_end_ = arena_next_ + kArena;
  }
  const int64_t offset = arena_next_;
  arena_next_ += bytes;
  used_[offset] = bytes;
  return offset;
}

absl::StatusOr<int64_t> SliceAllocator::AllocateLarge(int64_t bytes) {
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  for (const auto& [start, length] : free_ranges_) {
    const int64_t offset = first_ + RoundUp(start - first_, alignment);
    if (offset + bytes > start + length) continue;
    TESSERA_RETURN_IF_ERROR(Reserve(offset, bytes));
    const int64_t range_start = start;
    const int64_t range_end = start + length;
    free_ranges_.erase(range_start);
    if (offset > range_start) free_ranges_[range_start] = offset - range_start;
    if (range_end > offset + bytes) {
      free_ranges_[offset + bytes] = range_end - offset - bytes;
    }
    used_[offset] = bytes;
    return offset;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: no ", ByteSize(bytes).ToString(),
      " in one piece are left in this rank's slice of the segment, of which ",
      ByteSize(reserved_).ToString(), " are used"));
}

absl::Status SliceAllocator::Reserve(int64_t offset, int64_t bytes) {
  if (bytes > limit_ - reserved_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory: ", ByteSize(bytes).ToString(), " were requested, ",
        ByteSize(limit_ - reserved_).ToString(), " of this rank's limit of ",
        ByteSize(limit_).ToString(), " are left"));
  }
  int result = 0;
  do {
    result = fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    // Releases the memory that was reserved before the failure.
    Return(offset, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory: the machine has no ",
                     ByteSize(bytes).ToString(), " (", std::strerror(error),
                     "); this rank holds ", ByteSize(reserved_).ToString(),
                     ", ", ByteSize(FreeMemory()).ToString(), " are free"));
  }
  reserved_ += bytes;
  return absl::OkStatus();
}

void SliceAllocator::Return(int64_t offset, int64_t bytes) {
  // On failure the memory stays reserved until the segment is freed.
  static_cast<void>(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              offset, bytes));
}

void SliceAllocator::Free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(memory - base_);
  if (used == used_.end()) return;
  int64_t offset = used->first;
  int64_t bytes = used->second;
  used_.erase(used);
  if (bytes < kLarge) {
    free_small_[bytes].push_back(offset);
    return;
  }
  Return(offset, bytes);
  reserved_ -= bytes;
  const auto next = free_ranges_.lower_bound(offset);
  if (next != free_ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free_ranges_.erase(previous);
    }
  }
  if (next != free_ranges_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_ranges_.erase(next);
  }
  free_ranges_[offset] = bytes;
}

bool MayReadProcess(pid_t pid) {
  // The kernel checks permission before it accesses the address; the first page
  // is never mapped.
  std::byte byte;
  const iovec local = {&byte, 1};
  const iovec remote = {nullptr, 1};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) >= 0 ||
         errno == EFAULT;
}

absl::Status ReadProcess(pid_t pid, uintptr_t address, std::byte* to,
                         int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const auto left = static_cast<size_t>(bytes - done);
    const iovec local = {to + done, left};
    const iovec remote = {
        reinterpret_cast<void*>(address + static_cast<uintptr_t>(done)), left};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      return absl::UnavailableError(absl::StrCat(
          "reading ", bytes, " bytes of process ", pid, " stopped after ", done,
          ": ", got < 0 ? std::strerror(errno) : "no more"));
    }
    done += got;
  }
  return absl::OkStatus();
}

SharedMemoryDomain::SharedMemoryDomain(Segment segment, int64_t rank,
                                       std::vector<PeerProcess> peers,
                                       int64_t memory_limit)
    : segment_(std::move(segment)),
      allocator_(segment_.fd(), segment_.base(), FirstUsed(segment_, rank),
                 segment_.SliceStart(rank + 1), memory_limit),
      rank_(rank),
      size_(static_cast<int64_t>(peers.size())),
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
    // NotFound: the process has already ended.
    pidfds_.push_back(pidfd.ok() ? *std::move(pidfd) : UniqueFd());
  }
  return absl::OkStatus();
}

bool SharedMemoryDomain::MayReadPeers() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const PeerProcess& peer) {
    return MayReadProcess(peer.pid);
  });
}

host_memory::Announcement* SharedMemoryDomain::AnnouncementsOf(int64_t rank) {
  return reinterpret_cast<host_memory::Announcement*>(
             At(header().announcements)) +
         rank * host_memory::kAnnouncements;
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

}  // namespace tessera::collectives
