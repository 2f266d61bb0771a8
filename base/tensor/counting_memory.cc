#include "base/tensor/counting_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/arithmetic.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Blocks start at multiples of a page, so that no two share one.
constexpr size_t kPage = 4096;
constexpr size_t kLargestRegion = size_t{64} << 30;
constexpr size_t kMaxBytes = size_t{1} << 46;

// Null if the system refuses. With strict overcommit (vm.overcommit_memory=2),
// unused writable pages count too, so only address space is reserved.
std::byte* Map(size_t bytes, CountingMemory::Access access) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* data = MAP_FAILED;
  if (access == CountingMemory::Access::kZeros) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  }
  if (data == MAP_FAILED) {
    data = mmap(nullptr, bytes, PROT_NONE, kFlags, -1, 0);
  }
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

CountingMemory::~CountingMemory() {
  for (const Region& region : regions_) munmap(region.begin, region.size);
}

// Reserves at least `bytes`, and more if the system permits it.
absl::StatusOr<CountingMemory::Region> CountingMemory::Reserve(
    size_t bytes) const {
  for (size_t size = std::max(bytes, kLargestRegion);;
       size = std::max(bytes, size / 4)) {
    std::byte* const begin = Map(size, access_);
    if (begin != nullptr) return Region{begin, size, 0};
    if (size == bytes) break;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "no address space for ", bytes,
      " bytes to be counted; raise the limit of the process (ulimit -v)"));
}

absl::StatusOr<void*> CountingMemory::Allocate(size_t bytes, size_t alignment) {
  if (bytes > kMaxBytes || alignment > kPage) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot count ", bytes, " bytes aligned to ", alignment,
                     "; at most ", kMaxBytes, " aligned to ", kPage));
  }
  const size_t size = RoundUp(std::max<size_t>(bytes, 1), kPage);
  const std::lock_guard lock(mutex_);
  void* data = nullptr;
  std::vector<void*>& free = free_[size];
  if (!free.empty()) {
    data = free.back();
    free.pop_back();
  } else {
    if (regions_.empty() ||
        regions_.back().size - regions_.back().used < size) {
      TESSERA_ASSIGN_OR_RETURN(const Region region, Reserve(size));
      regions_.push_back(region);
    }
    Region& region = regions_.back();
    data = region.begin + region.used;
    region.used += size;
  }
  live_bytes_ += static_cast<int64_t>(bytes);
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return data;
}

void CountingMemory::Deallocate(void* data, size_t bytes, size_t) {
  const std::lock_guard lock(mutex_);
  free_[RoundUp(std::max<size_t>(bytes, 1), kPage)].push_back(data);
  live_bytes_ -= static_cast<int64_t>(bytes);
}

int64_t CountingMemory::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t CountingMemory::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

void CountingMemory::ResetPeak() {
  const std::lock_guard lock(mutex_);
  peak_bytes_ = live_bytes_;
}

bool CountingMemory::Owns(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  return std::any_of(
      regions_.begin(), regions_.end(), [at](const Region& region) {
        return at >= region.begin && at < region.begin + region.size;
      });
}

}  // namespace tessera
