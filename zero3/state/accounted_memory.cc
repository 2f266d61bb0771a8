#include "zero3/state/accounted_memory.h"

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::StatusOr<AccountedMemory> AccountedMemory::Allocate(
    const StateDevice& device, std::string_view key, int64_t bytes,
    offload::Purpose purpose) {
  AccountedMemory memory;
  TESSERA_ASSIGN_OR_RETURN(
      memory.reservation_,
      offload::Accounting::Reserve(device.accounting, key, bytes, purpose));
  TESSERA_ASSIGN_OR_RETURN(
      memory.memory_,
      Buffer::Allocate(device.memory, static_cast<size_t>(bytes)));
  return memory;
}

}  // namespace tessera::zero3
