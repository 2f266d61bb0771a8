// CountingMemory: addresses without memory behind them, for dry runs: what a
// program would hold is counted, and nothing is taken of the machine.
//
//   auto memory = std::make_shared<CountingMemory>();
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory, bytes));
//   memory->peak_bytes();
//
// A block is a range of reserved address space of its own. Code that reads it
// sees zeros, and code that writes it makes the machine provide the pages that
// it writes; with Access::kTrapped either ends the process, which is how tests
// show that a dry run touches nothing.
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
  // ResourceExhausted where the process has no such address space.
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes, size_t alignment) override;

  // Bytes that were asked for and not given back; and the most of them at a
  // time since the last ResetPeak.
  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  void ResetPeak();

  // Whether `data` lies in memory that this resource reserved.
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
