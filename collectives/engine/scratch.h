// Scratch: working memory that is kept from one operation to the next.
//
//   Scratch scratch;
//   TESSERA_ASSIGN_OR_RETURN(std::span<std::byte> work,
//   scratch.Allocate(4096)); scratch.Reset();   // all of it is free again
//
// Not thread-safe.
#ifndef TESSERA_COLLECTIVES_ENGINE_SCRATCH_H_
#define TESSERA_COLLECTIVES_ENGINE_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::collectives {

class Scratch {
 public:
  // Up to `kept_bytes` are kept by Reset; what exceeds that is given back.
  explicit Scratch(int64_t kept_bytes = int64_t{64} << 20)
      : kept_bytes_(kept_bytes) {}

  // `bytes` bytes aligned to 64. InvalidArgument where bytes is negative,
  // ResourceExhausted where the machine has none.
  absl::StatusOr<std::span<std::byte>> Allocate(int64_t bytes);

  // Everything that was allocated is free.
  void Reset();

  // What is held at present.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    int64_t size = 0;
    int64_t used = 0;

    int64_t left() const { return size - used; }
  };

  int64_t kept_bytes_;
  int64_t held_bytes_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_SCRATCH_H_
