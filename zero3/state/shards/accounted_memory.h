// AccountedMemory: memory of this rank that counts against a budget while it
// lives.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       AccountedMemory shard,
//       AccountedMemory::Allocate(device, "layer.0", bytes,
//                                 offload::Purpose::kParameters));
#ifndef TESSERA_ZERO3_STATE_SHARDS_ACCOUNTED_MEMORY_H_
#define TESSERA_ZERO3_STATE_SHARDS_ACCOUNTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"
#include "zero3/state/shards/state_device.h"

namespace tessera::zero3 {

// Move-only; a default-constructed one is empty.
class AccountedMemory {
 public:
  AccountedMemory() = default;

  // Uninitialised bytes, aligned to 64. ResourceExhausted where the budget of
  // `device` has no room for them, or its memory. With `shared_by`, memory on
  // which the collectives of that communicator are fastest, as long as it has
  // any.
  static absl::StatusOr<AccountedMemory> Allocate(
      const StateDevice& device, std::string_view key, int64_t bytes,
      offload::Purpose purpose, collectives::Communicator* shared_by = nullptr);

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  offload::Reservation reservation_;
  tessera::Buffer heap_;
  std::unique_ptr<collectives::SharedMemory> shared_;
  std::span<std::byte> bytes_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_ACCOUNTED_MEMORY_H_
