// GuardedMemory: a buffer that shows when something around it was written.
#ifndef TESSERA_COLLECTIVES_TESTING_GUARDED_MEMORY_H_
#define TESSERA_COLLECTIVES_TESTING_GUARDED_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// Memory with guards on both sides of `count` elements that start at no round
// address.
class GuardedMemory {
 public:
  static absl::StatusOr<GuardedMemory> Create(Communicator& communicator,
                                              bool shared, int64_t count,
                                              DType dtype) {
    GuardedMemory memory;
    memory.size_ = SizeInBytes(dtype);
    memory.bytes_ = count * memory.size_;
    const int64_t all = memory.bytes_ + 2 * kGuard;
    std::byte* start = nullptr;
    if (shared) {
      TESSERA_ASSIGN_OR_RETURN(memory.shared_,
                               communicator.AllocateShared(all));
      start = memory.shared_->bytes().data();
    } else {
      memory.own_ = std::make_unique<std::byte[]>(static_cast<size_t>(all));
      start = memory.own_.get();
    }
    memory.start_ = start;
    std::memset(start, kGuardByte, static_cast<size_t>(all));
    memory.buffer_ = Buffer(start + memory.Offset(), count, dtype);
    return memory;
  }

  Buffer buffer() const { return buffer_; }

  bool Intact() const {
    const auto guarded = [&](int64_t from, int64_t to) {
      return std::all_of(start_ + from, start_ + to, [](std::byte b) {
        return b == static_cast<std::byte>(kGuardByte);
      });
    };
    return guarded(0, Offset()) &&
           guarded(Offset() + bytes_, bytes_ + 2 * kGuard);
  }

 private:
  static constexpr int64_t kGuard = 128;
  static constexpr int kGuardByte = 0x5a;

  // One element past the guard: aligned to elements, not to vectors.
  int64_t Offset() const { return kGuard - 3 * size_; }

  std::unique_ptr<std::byte[]> own_;
  std::unique_ptr<SharedMemory> shared_;
  std::byte* start_ = nullptr;
  int64_t size_ = 1;
  int64_t bytes_ = 0;
  Buffer buffer_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_GUARDED_MEMORY_H_
