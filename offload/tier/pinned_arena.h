// PinnedArena: a memory resource over page-locked host memory, which is
// allocated once and suballocated in exact sizes.
//
//   TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<PinnedArena> arena,
//                            PinnedArena::Create({.cap = 4LL << 30}));
//   if (!arena->pinned()) Warn(arena->pin_status());  // still usable
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(arena, bytes));
//
// Allocators of pinned memory commonly round every request up to a power of two
// and use up to twice the requested size. The arena maps and locks `cap` bytes
// (rounded up to a page) at once; a request uses its size plus alignment gaps,
// which later requests may fill.
#ifndef TESSERA_OFFLOAD_TIER_PINNED_ARENA_H_
#define TESSERA_OFFLOAD_TIER_PINNED_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/extent_allocator.h"
#include "base/tensor/memory.h"

namespace tessera::offload {

// The functions that lock memory. The default is mlock; a program with a GPU
// passes CudaPinning (offload/tier/cuda_pinning.h).
struct Pinning {
  std::function<absl::Status(void* data, size_t bytes)> pin;
  std::function<void(void* data, size_t bytes)> unpin;
};

// mlock and munlock. If RLIMIT_MEMLOCK is too low, the error has its value and
// how to raise it.
Pinning MlockPinning();

// Safe for concurrent use. Buffers keep the arena alive.
class PinnedArena final : public MemoryResource {
 public:
  struct Options {
    int64_t cap = 0;  // bytes, above 0
    Pinning pinning = MlockPinning();
  };

  // InvalidArgument for a cap that is not positive; ResourceExhausted if the
  // address space or memory is not available. Failure to pin the memory is not
  // an error: see pinned().
  static absl::StatusOr<std::shared_ptr<PinnedArena>> Create(Options options);
  ~PinnedArena() override;

  // Returns whether the arena is page-locked. If not, pin_status() has the
  // reason, and the memory is pageable.
  bool pinned() const { return pin_status_.ok(); }
  const absl::Status& pin_status() const { return pin_status_; }

  int64_t cap() const { return static_cast<int64_t>(bytes_); }
  int64_t used_bytes() const;
  int64_t largest_free() const;

  // kPinnedHost if pinned(), else kHost.
  MemoryKind kind() const override;
  // ResourceExhausted names the cap, the bytes in use and the largest free
  // extent.
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes, size_t alignment) override;

 private:
  PinnedArena(std::byte* data, size_t bytes, Pinning pinning);

  std::byte* const data_;
  const size_t bytes_;
  const Pinning pinning_;
  const absl::Status pin_status_;
  mutable absl::Mutex mutex_;
  ExtentAllocator extents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_PINNED_ARENA_H_
