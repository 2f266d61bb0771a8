// Zero-copy collectives: all ranks access each other's buffers directly. An
// all_reduce of S bytes moves 2S bytes per rank. Collectives that only move
// data can also read a peer's private memory through the kernel
// (process_vm_readv).
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::host_memory {

// The buffers of all ranks, as this rank can access them.
struct Reachable {
  // Null if only the kernel can read the buffer, at `addresses`.
  std::vector<const std::byte*> inputs;
  std::vector<uintptr_t> addresses;
  std::vector<std::byte*> outputs;
  bool enough = false;  // True if RunZeroCopy can execute the call.
};

// Exchanges the addresses of all ranks' buffers. All ranks get the same
// `enough`. One synchronisation.
absl::StatusOr<Reachable> ExchangeOffsets(Call& call);

// Requires reachable.enough. Does not support an uneven or in-place all_to_all.
absl::Status RunZeroCopy(Call& call, const Reachable& reachable);

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_
