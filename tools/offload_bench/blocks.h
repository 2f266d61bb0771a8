// Blocks: equal blocks of one buffer of deterministic data, and the transfers
// of all of them to and from a tier.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_BLOCKS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload_bench {

// The standard deviation of the weights of a large model.
inline constexpr double kDeviation = 0.02;

// `count` elements of normal(0, kDeviation), computed in f64 and rounded to
// `dtype`, a floating type. Aligned to 4096 bytes.
absl::StatusOr<Buffer> NormalWeights(DType dtype, int64_t count, uint64_t seed);

// `count` incompressible random bytes.
absl::StatusOr<Buffer> RandomBytes(int64_t count, uint64_t seed);

// The values, and buffers to read them back into; the keys are "0", "1", ...
class Blocks {
 public:
  // Cuts `values`, of type `dtype`, into blocks of `block_bytes`.
  static absl::StatusOr<Blocks> Cut(Buffer values, DType dtype,
                                    int64_t block_bytes);

  int64_t count() const { return count_; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t bytes() const { return count_ * block_bytes_; }
  DType dtype() const { return dtype_; }
  std::span<const std::byte> values(int64_t index) const {
    return values_.bytes().subspan(At(index), At(1));
  }
  std::span<std::byte> room(int64_t index) {
    return room_.bytes().subspan(At(index), At(1));
  }

  // Start the transfers of all blocks in order, then wait for them.
  absl::Status PutAll(offload::MemoryTier& tier) const;
  absl::Status GetAll(offload::MemoryTier& tier);
  // The same with copies instead of a tier.
  absl::Status CopyAll();

  // DataLoss, with the tier's name and the block, if GetAll returned other
  // values.
  absl::Status CheckRoom(const offload::MemoryTier& tier) const;

 private:
  Blocks(Buffer values, Buffer room, DType dtype, int64_t block_bytes,
         int64_t count)
      : values_(std::move(values)),
        room_(std::move(room)),
        dtype_(dtype),
        block_bytes_(block_bytes),
        count_(count) {}

  size_t At(int64_t index) const {
    return static_cast<size_t>(index * block_bytes_);
  }

  Buffer values_, room_;
  DType dtype_;
  int64_t block_bytes_;
  int64_t count_;
};

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_BLOCKS_H_
