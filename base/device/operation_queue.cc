#include "base/device/operation_queue.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::Status AnyOperationQueue::RunAny(const OperationType& type, size_t index,
                                       const void* operation) {
  if (kernels_.empty()) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  if (!observer_) return RunKernel(type, kernels_[index], operation);
  const int64_t begin = clock_();
  absl::Status status = RunKernel(type, kernels_[index], operation);
  observer_(type.name, begin, clock_());
  return status;
}

absl::Status AnyOperationQueue::RunKernel(const OperationType& type,
                                          const OperationKernel& kernel,
                                          const void* operation) {
  OperandChecker check(type.name, kind_, /*records=*/!is_immediate_);
  TESSERA_RETURN_IF_ERROR(type.check(operation, check));
  if (kernel.run == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(type.name, ": the device ", queue_.device().name(),
                     " does not have this operation"));
  }
  if (kernel.check != nullptr) {
    kernel.check(backend_.get(), operation, check);
    TESSERA_RETURN_IF_ERROR(check.status());
  }
  if (type.is_empty(operation)) return absl::OkStatus();
  if (is_immediate_) return kernel.run(backend_.get(), operation);
  return queue_.Launch({.name = type.name,
                        .accesses = check.accesses(),
                        .run = type.defer(operation, kernel.run, backend_),
                        .enqueues = enqueues_},
                       place_);
}

}  // namespace tessera
