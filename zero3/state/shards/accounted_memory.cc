#include "zero3/state/shards/accounted_memory.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::StatusOr<AccountedMemory> AccountedMemory::Allocate(
    const StateDevice& device, std::string_view key, int64_t bytes,
    offload::Purpose purpose, collectives::Communicator* shared_by) {
  AccountedMemory memory;
  TESSERA_ASSIGN_OR_RETURN(
      memory.reservation_,
      offload::Accounting::Reserve(device.accounting, key, bytes, purpose));
  if (shared_by != nullptr && bytes > 0) {
    auto shared = shared_by->AllocateShared(bytes);
    if (shared.ok()) {
      memory.shared_ = *std::move(shared);
      memory.bytes_ = memory.shared_->bytes().first(static_cast<size_t>(bytes));
      return memory;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      memory.heap_,
      tessera::Buffer::Allocate(device.memory, static_cast<size_t>(bytes)));
  memory.bytes_ = {static_cast<std::byte*>(memory.heap_.data()),
                   static_cast<size_t>(bytes)};
  return memory;
}

}  // namespace tessera::zero3
