// AccountedMemory: memory of this rank that counts against a budget until it is
// destroyed.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       AccountedMemory shard,
//       AccountedMemory::Allocate(device, "layer.0", bytes,
//                                 offload::Purpose::kParameters));
#ifndef TESSERA_ZERO3_STATE_ACCOUNTED_MEMORY_H_
#define TESSERA_ZERO3_STATE_ACCOUNTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// Move-only; default-constructed: empty.
class AccountedMemory {
 public:
  AccountedMemory() = default;

  // Uninitialised bytes, aligned to 64. ResourceExhausted if the budget or the
  // memory of `device` has too little room.
  static absl::StatusOr<AccountedMemory> Allocate(const StateDevice& device,
                                                  std::string_view key,
                                                  int64_t bytes,
                                                  offload::Purpose purpose);

  std::span<std::byte> bytes() const {
    return {const_cast<std::byte*>(memory_.data()), memory_.size()};
  }

 private:
  // Destroyed after the memory, so that no byte is uncounted.
  offload::Reservation reservation_;
  Buffer memory_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_ACCOUNTED_MEMORY_H_
