// Arena: a memory resource that hands out parts of a few large blocks of
// another resource, so that device memory is allocated once, at the start.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena,
//                            Arena::Create(device->memory(), bytes));
//   TESSERA_ASSIGN_OR_RETURN(Buffer part, Buffer::Allocate(arena, 1 << 20));
//
// Freed parts are merged and reused; a request gets the smallest free part that
// is large enough (best fit). If there is none, the arena allocates another
// block from the resource. Memory may be freed while work on it is still
// queued; its next user must wait for that work. Thread-safe.
#ifndef TESSERA_BASE_DEVICE_ARENA_H_
#define TESSERA_BASE_DEVICE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/extent_allocator.h"
#include "base/tensor/memory.h"

namespace tessera {

class Arena final : public MemoryResource {
 public:
  // Allocates the first block, of `bytes`; if 0, the first request does.
  // Returns the resource's errors.
  static absl::StatusOr<std::shared_ptr<Arena>> Create(
      std::shared_ptr<MemoryResource> resource, size_t bytes);

  MemoryKind kind() const override { return resource_->kind(); }
  int device_ordinal() const override { return resource_->device_ordinal(); }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes, size_t alignment) override;

  // The number of blocks allocated from the resource, their bytes, and the
  // bytes in use.
  int64_t blocks() const;
  int64_t held_bytes() const;
  int64_t used_bytes() const;

 private:
  explicit Arena(std::shared_ptr<MemoryResource> resource);

  absl::Status Grow(size_t bytes);

  const std::shared_ptr<MemoryResource> resource_;
  mutable std::mutex mutex_;
  std::vector<Buffer> blocks_;
  // The whole address space. Only unused parts of the blocks are free.
  ExtentAllocator addresses_;
  int64_t held_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_ARENA_H_
