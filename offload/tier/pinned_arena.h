// PinnedArena: page-locked memory of the host, taken once and given out in
// exact sizes.
//
//   TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<PinnedArena> arena,
//                            PinnedArena::Create({.cap = 4LL << 30}));
//   if (!arena->pinned()) Warn(arena->pin_status());  // usable all the same
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(arena, bytes));
//
// Allocators of pinned memory commonly round every request up to a power of
// two, and so hold up to twice what was asked. Here `cap` bytes (rounded up to
// a page) are mapped and locked at once, and a request costs what it asks for
// plus what its alignment skips, which later requests may fill.
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
#include "base/tensor/memory.h"
#include "offload/tier/extent_allocator.h"

namespace tessera::offload {

// How memory is locked. The default is mlock; a program with a GPU hands in
// CudaPinning (offload/tier/cuda_pinning.h).
struct Pinning {
  std::function<absl::Status(void* data, size_t bytes)> pin;
  std::function<void(void* data, size_t bytes)> unpin;
};

// mlock and munlock. Where the limit is too low the message says which limit
// (RLIMIT_MEMLOCK), how much it allows and how to raise it.
Pinning MlockPinning();

// Safe for concurrent use. Buffers keep it alive.
class PinnedArena final : public MemoryResource {
 public:
  struct Options {
    int64_t cap = 0;  // bytes, above 0
    Pinning pinning = MlockPinning();
  };

  // InvalidArgument for a cap that is not positive; ResourceExhausted where
  // the address space or memory cannot be had. Memory that cannot be pinned is
  // no error: see pinned().
  static absl::StatusOr<std::shared_ptr<PinnedArena>> Create(Options options);
  ~PinnedArena() override;

  // Whether the arena is page-locked; if not, pin_status() says why, and the
  // memory is as any other.
  bool pinned() const { return pin_status_.ok(); }
  const absl::Status& pin_status() const { return pin_status_; }

  int64_t cap() const { return static_cast<int64_t>(bytes_); }
  int64_t used_bytes() const;
  int64_t largest_free() const;

  // kPinnedHost where pinned(), else kHost.
  MemoryKind kind() const override;
  // ResourceExhausted names the cap, what is used and the longest free run.
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
