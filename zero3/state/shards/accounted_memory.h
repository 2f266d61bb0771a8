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
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"
#include "zero3/state/shards/state_device.h"

namespace tessera::zero3 {

// Move-only; a default-constructed one is empty.
class AccountedMemory {
 public:
  AccountedMemory() = default;

  // Uninitialised bytes, aligned to 64. ResourceExhausted where the budget of
  // `device` has no room for them, or its memory.
  static absl::StatusOr<AccountedMemory> Allocate(const StateDevice& device,
                                                  std::string_view key,
                                                  int64_t bytes,
                                                  offload::Purpose purpose);

  std::span<std::byte> bytes() const {
    return {const_cast<std::byte*>(memory_.data()), memory_.size()};
  }

 private:
  // The memory goes before its bytes stop counting.
  offload::Reservation reservation_;
  Buffer memory_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_ACCOUNTED_MEMORY_H_
