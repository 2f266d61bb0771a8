// Scratch: temporary memory of kernels that grows and is reused between
// launches.
//
//   Scratch scratch(HostMemory());                      // Emulated kernels.
//   Scratch scratch(device_memory, [&] { return queue.Synchronize(); });
//   TESSERA_ASSIGN_OR_RETURN(std::byte* parts, scratch.Reserve(bytes));
//
// All kernels that use it run on one stream, one after the other, so that they
// can share one memory block.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_SCRATCH_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_SCRATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera::tensor_parallel {

class Scratch {
 public:
  static constexpr int64_t kAlignment = 256;
  // A block exceeds the largest request by at most this factor.
  static constexpr int64_t kLargestGrowth = 16 << 20;

  // `synchronize` waits until no kernel uses the block; it is called before a
  // larger block replaces it. Empty: kernels are done when a launch returns.
  explicit Scratch(std::shared_ptr<MemoryResource> memory,
                   std::function<absl::Status()> synchronize = nullptr)
      : memory_(std::move(memory)), synchronize_(std::move(synchronize)) {}

  // At least `bytes` bytes, uninitialised, aligned to 256, for the kernels that
  // the caller launches now: the next call returns the same memory again.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes) {
    if (bytes <= size()) return block_.data();
    if (synchronize_ != nullptr && size() > 0) {
      TESSERA_RETURN_IF_ERROR(synchronize_());
    }
    // Growing by more than is needed makes allocations rare.
    const int64_t growth = std::min(size() / 2, kLargestGrowth);
    const int64_t larger = std::max(bytes, size() + growth);
    block_ = Buffer();
    TESSERA_ASSIGN_OR_RETURN(block_,
                             Buffer::Allocate(memory_, larger, kAlignment));
    return block_.data();
  }

  int64_t size() const { return static_cast<int64_t>(block_.size()); }

 private:
  std::shared_ptr<MemoryResource> memory_;
  std::function<absl::Status()> synchronize_;
  Buffer block_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_SCRATCH_H_
