#include "offload/tier/budgeted_memory.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::offload {

// No bytes fit into every budget.
BudgetedMemory::BudgetedMemory(std::shared_ptr<MemoryResource> whole,
                               std::shared_ptr<Accounting> accounting,
                               Purpose purpose)
    : whole_(std::move(whole)),
      accounting_(std::move(accounting)),
      counted_(*Accounting::Reserve(accounting_, PurposeName(purpose), 0,
                                    purpose)) {}

absl::Status BudgetedMemory::Count(int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  return counted_.Resize(PurposeName(counted_.purpose()),
                         counted_.bytes() + bytes);
}

absl::StatusOr<void*> BudgetedMemory::Allocate(size_t bytes, size_t alignment) {
  const auto count = static_cast<int64_t>(bytes);
  TESSERA_RETURN_IF_ERROR(Count(count));
  absl::StatusOr<void*> data = whole_->Allocate(bytes, alignment);
  if (!data.ok()) Count(-count).IgnoreError();  // Shrinking always succeeds.
  return data;
}

void BudgetedMemory::Deallocate(void* data, size_t bytes, size_t alignment) {
  whole_->Deallocate(data, bytes, alignment);
  Count(-static_cast<int64_t>(bytes)).IgnoreError();
}

}  // namespace tessera::offload
