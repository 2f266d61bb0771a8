#include "collectives/engine/ordinary_memory.h"

#include <cstring>
#include <span>

#include "base/status_macros.h"
#include "collectives/engine/scratch.h"

namespace tessera::collectives {
namespace {

class OrdinaryMemory : public SharedMemory {
 public:
  absl::Status Allocate(int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(bytes_, owner_.Allocate(bytes));
    if (bytes > 0) std::memset(bytes_.data(), 0, bytes_.size());
    return absl::OkStatus();
  }
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  Scratch owner_;
  std::span<std::byte> bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateOrdinary(int64_t bytes) {
  auto memory = std::make_unique<OrdinaryMemory>();
  TESSERA_RETURN_IF_ERROR(memory->Allocate(bytes));
  return memory;
}

}  // namespace tessera::collectives
