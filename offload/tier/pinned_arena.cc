#include "offload/tier/pinned_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::offload {
namespace {

absl::Status Mlock(void* data, size_t bytes) {
  if (mlock(data, bytes) == 0) return absl::OkStatus();
  const int error = errno;
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string allowed = limit.rlim_cur == RLIM_INFINITY
                                  ? "unlimited"
                                  : absl::StrCat(limit.rlim_cur, " bytes");
  return absl::ErrnoToStatus(
      error,
      absl::StrCat("mlock of ", bytes, " bytes (RLIMIT_MEMLOCK is ", allowed,
                   "; raise it with ulimit -l, or lower the "
                   "arena's cap)"));
}

size_t RoundUpToPage(int64_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (static_cast<size_t>(bytes) + page - 1) / page * page;
}

}  // namespace

Pinning MlockPinning() {
  return {Mlock, [](void* data, size_t bytes) { munlock(data, bytes); }};
}

absl::StatusOr<std::shared_ptr<PinnedArena>> PinnedArena::Create(
    Options options) {
  if (options.cap <= 0 || options.cap > INT64_MAX / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cap of a pinned arena is ", options.cap,
                     " bytes; give a positive number that memory can hold"));
  }
  const size_t bytes = RoundUpToPage(options.cap);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a pinned arena of ", bytes, " bytes cannot be mapped (",
        absl::ErrnoToStatus(errno, "mmap").message(), "); lower its cap"));
  }
  return std::shared_ptr<PinnedArena>(new PinnedArena(
      static_cast<std::byte*>(data), bytes, std::move(options.pinning)));
}

PinnedArena::PinnedArena(std::byte* data, size_t bytes, Pinning pinning)
    : data_(data),
      bytes_(bytes),
      pinning_(std::move(pinning)),
      pin_status_(pinning_.pin(data, bytes)),
      extents_(static_cast<int64_t>(bytes)) {}

PinnedArena::~PinnedArena() {
  if (pinned()) pinning_.unpin(data_, bytes_);
  munmap(data_, bytes_);
}

int64_t PinnedArena::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return extents_.capacity() - extents_.free_bytes();
}

int64_t PinnedArena::largest_free() const {
  absl::MutexLock lock(&mutex_);
  return extents_.largest_free();
}

MemoryKind PinnedArena::kind() const {
  return pinned() ? MemoryKind::kPinnedHost : MemoryKind::kHost;
}

absl::StatusOr<void*> PinnedArena::Allocate(size_t bytes, size_t alignment) {
  // The arena starts at a page, so the alignment of an offset is that of its
  // address.
  if (alignment > RoundUpToPage(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pinned arena aligns to a page at most (",
                     RoundUpToPage(1), " bytes); requested: ", alignment));
  }
  absl::MutexLock lock(&mutex_);
  const std::optional<int64_t> start =
      bytes > bytes_ ? std::nullopt
                     : extents_.Allocate(static_cast<int64_t>(bytes),
                                         static_cast<int64_t>(alignment));
  if (start.has_value()) return data_ + *start;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the pinned arena has no ", bytes, " bytes in a row: cap ", bytes_,
      " bytes, used ", extents_.capacity() - extents_.free_bytes(),
      ", longest free run ", extents_.largest_free(),
      "; free some, or raise the cap"));
}

void PinnedArena::Deallocate(void* data, size_t bytes, size_t /*alignment*/) {
  absl::MutexLock lock(&mutex_);
  extents_
      .Free(static_cast<std::byte*>(data) - data_, static_cast<int64_t>(bytes))
      .IgnoreError();
}

}  // namespace tessera::offload
