// BudgetedMemory: a memory resource whose allocations count against a budget.
//
//   auto memory = std::make_shared<BudgetedMemory>(
//       device.memory(), accounting, Purpose::kActivations);
//   TensorPool pool(memory);
#ifndef TESSERA_OFFLOAD_TIER_BUDGETED_MEMORY_H_
#define TESSERA_OFFLOAD_TIER_BUDGETED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {

// Allocates from `whole` and counts the bytes in `accounting`, neither of which
// may be null. Thread-safe.
class BudgetedMemory final : public MemoryResource {
 public:
  BudgetedMemory(std::shared_ptr<MemoryResource> whole,
                 std::shared_ptr<Accounting> accounting, Purpose purpose);

  // The usage of the whole budget.
  Usage usage() const { return accounting_->usage(); }
  MemoryKind kind() const override { return whole_->kind(); }
  int device_ordinal() const override { return whole_->device_ordinal(); }
  // ResourceExhausted, which names the purpose, if the budget is too small, and
  // the errors of `whole`.
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes, size_t alignment) override;

 private:
  absl::Status Count(int64_t bytes);

  const std::shared_ptr<MemoryResource> whole_;
  const std::shared_ptr<Accounting> accounting_;
  absl::Mutex mutex_;
  Reservation counted_ ABSL_GUARDED_BY(mutex_);  // All live allocations.
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_BUDGETED_MEMORY_H_
