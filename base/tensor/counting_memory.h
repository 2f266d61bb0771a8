// CountingMemory: counts the memory that a program would allocate, without
// allocating it. For dry runs.
//
//   auto memory = std::make_shared<CountingMemory>();
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory, bytes));
//   memory->peak_bytes();
//
// Each block is its own range of reserved address space. Reading it yields
// zeros, and writing it makes the system allocate the pages that are written.
// With Access::kTrapped both end the process with SIGSEGV, which is how tests
// prove that a dry run touches nothing. Thread-safe.
#ifndef TESSERA_BASE_TENSOR_COUNTING_MEMORY_H_
#define TESSERA_BASE_TENSOR_COUNTING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"

namespace tessera {

class CountingMemory final : public MemoryResource {
 public:
  enum class Access { kZeros, kTrapped };

  explicit CountingMemory(Access access = Access::kZeros) : access_(access) {}
  ~CountingMemory() override;
  CountingMemory(const CountingMemory&) = delete;
  CountingMemory& operator=(const CountingMemory&) = delete;

  MemoryKind kind() const override { return MemoryKind::kHost; }
  // ResourceExhausted if the process has too little address space.
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes, size_t alignment) override;

  // Bytes allocated now, and their maximum since the last ResetPeak.
  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  void ResetPeak();

  // True if `data` points into memory that this resource reserved.
  bool Owns(const void* data) const;

 private:
  struct Region {
    std::byte* begin = nullptr;
    size_t size = 0;
    size_t used = 0;
  };

  absl::StatusOr<Region> Reserve(size_t bytes) const;

  const Access access_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;  // Blocks are cut from the last one.
  std::map<size_t, std::vector<void*>> free_;  // By size.
  int64_t live_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_COUNTING_MEMORY_H_
