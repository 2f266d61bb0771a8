// OperationQueue: checks operations, which are structs, and executes them on a
// device's queue.
//
// An operation is a struct with its operands, its name and its check:
//
//   struct AddBias {  // x[row] += bias
//     static constexpr std::string_view kName = "AddBias";
//     ConstTensorView bias;  // [n]
//     TensorView x;          // [rows, n]
//     absl::Status Check(OperandChecker& check) const;
//     auto operands() { return std::tie(bias, x); }
//   };
//   using MyOperations = OperationList<AddBias, Fill>;
//
// A backend is a set of overloads over the operations, with whatever state
// their kernels share:
//
//   absl::Status Run(Cpu& cpu, const AddBias& operation);
//   absl::Status Run(Cpu& cpu, const Fill& operation);
//
//   KernelTable<Cpu, MyOperations> kernels;
//   kernels.Add<AddBias, Fill>([](Cpu& cpu, const auto& operation) {
//     return Run(cpu, operation);
//   });
//
// The queue checks operands, records which memory an operation accesses, and
// calls the kernel or enqueues it:
//
//   OperationQueue<MyOperations> ops(queue, kernels, std::make_shared<Cpu>());
//   TESSERA_RETURN_IF_ERROR(ops.Run(AddBias{bias, x}));
//
//   OperationQueue<MyOperations> dry(queue);  // A dry run: counts the calls.
//
// An operation may also have these members:
//
//   bool IsEmpty() const        true if there is nothing to compute
//   void MoveTo(const DeviceAddresses&)
//                               replaces operands() for operands that are not
//                               views
//   void Keep()                 copies data that an enqueued operation refers
//                               to besides its operands
#ifndef TESSERA_BASE_DEVICE_OPERATION_QUEUE_H_
#define TESSERA_BASE_DEVICE_OPERATION_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/operand_checker.h"
#include "base/device/operation.h"
#include "base/tensor/memory.h"

namespace tessera {

// The type-erased name and functions of an operation's type.
struct OperationType {
  using Function =
      absl::AnyInvocable<absl::StatusOr<Event>(const DeviceAddresses&)>;

  std::string_view name;
  absl::Status (*check)(const void* operation, OperandChecker& check);
  bool (*is_empty)(const void* operation);
  // Returns a function that runs `kernel` on a copy of the operation, with
  // operands translated by the addresses that the function is given.
  Function (*defer)(const void* operation, OperationKernel::Run kernel,
                    std::shared_ptr<void> backend);
};

template <typename Operation>
inline constexpr OperationType kOperationType = {
    .name = Operation::kName,
    .check =
        [](const void* operation, OperandChecker& check) {
          return static_cast<const Operation*>(operation)->Check(check);
        },
    .is_empty =
        [](const void* operation) {
          if constexpr (requires(const Operation& o) { o.IsEmpty(); }) {
            return static_cast<const Operation*>(operation)->IsEmpty();
          } else {
            return false;
          }
        },
    .defer = [](const void* operation, OperationKernel::Run kernel,
                std::shared_ptr<void> backend) -> OperationType::Function {
      Operation kept = *static_cast<const Operation*>(operation);
      if constexpr (requires { kept.Keep(); }) kept.Keep();
      return [kept = std::move(kept), kernel, backend = std::move(backend)](
                 const DeviceAddresses& at) -> absl::StatusOr<Event> {
        Operation moved = kept;
        if constexpr (requires { moved.MoveTo(at); }) {
          moved.MoveTo(at);
        } else {
          std::apply([&](auto&... operand) { ((operand = at(operand)), ...); },
                     moved.operands());
        }
        absl::Status status = kernel(backend.get(), &moved);
        if (!status.ok()) return status;
        return Event();
      };
    }};

// The part of OperationQueue that does not depend on the list. Use it on one
// thread at a time.
class AnyOperationQueue {
 public:
  using Clock = int64_t (*)();
  // Called after each operation, by the thread that ran it, with the clock's
  // times before and after. On an immediate queue they include the work itself.
  // `name` has static storage.
  using Observer =
      std::function<void(std::string_view name, int64_t begin, int64_t end)>;

  virtual ~AnyOperationQueue() = default;
  AnyOperationQueue(const AnyOperationQueue&) = delete;
  AnyOperationQueue& operator=(const AnyOperationQueue&) = delete;

  // The queue on which operations are enqueued.
  Queue& queue() const { return queue_; }

  // False in a dry run, which neither checks operations nor computes anything.
  bool computes() const { return !kernels_.empty(); }
  // The number of operations of a dry run.
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Sets the source location of the next calls, for device errors.
  void SetPlace(const SourcePlace& place) { place_ = place; }

  // Sets the observer; null removes it.
  void Observe(Clock clock, Observer observer) {
    clock_ = clock;
    observer_ = std::move(observer);
  }

 protected:
  // `queue` and the table of `kernels` must outlive this object. `enqueues` is
  // true if the kernels enqueue work on Queue::native_handle() instead of
  // executing it.
  AnyOperationQueue(Queue& queue, std::span<const OperationKernel> kernels,
                    std::shared_ptr<void> backend, bool enqueues)
      : queue_(queue),
        is_immediate_(queue.is_immediate()),
        enqueues_(enqueues),
        kind_(queue.device().memory()->kind()),
        kernels_(kernels),
        backend_(std::move(backend)) {}
  // A dry run.
  explicit AnyOperationQueue(Queue& queue)
      : AnyOperationQueue(queue, {}, nullptr, false) {}

  absl::Status RunAny(const OperationType& type, size_t index,
                      const void* operation);

 private:
  absl::Status RunKernel(const OperationType& type,
                         const OperationKernel& kernel, const void* operation);

  Queue& queue_;
  const bool is_immediate_;
  const bool enqueues_;
  const MemoryKind kind_;  // The memory of operands.
  const std::span<const OperationKernel> kernels_;
  const std::shared_ptr<void> backend_;
  SourcePlace place_ = SourcePlace::current();
  Clock clock_ = nullptr;
  Observer observer_;
  std::atomic<int64_t> calls_ = 0;
};

template <typename List>
class OperationQueue : public AnyOperationQueue {
 public:
  using Operations = List;

  template <typename Backend>
  OperationQueue(Queue& queue, const KernelTable<Backend, List>& kernels,
                 std::shared_ptr<Backend> backend, bool enqueues = false)
      : AnyOperationQueue(queue, kernels.kernels(), std::move(backend),
                          enqueues) {}
  explicit OperationQueue(Queue& queue) : AnyOperationQueue(queue) {}

  // Checks and enqueues an operation; on an immediate queue it is done when the
  // call returns. Enqueues nothing and returns InvalidArgument if the
  // operation's check fails, or Unimplemented if the backend does not support
  // the operation.
  template <typename Operation>
  absl::Status Run(const Operation& operation) {
    constexpr size_t kIndex = List::template IndexOf<Operation>();
    static_assert(kIndex < List::kSize, "the queue has no such operation");
    return RunAny(kOperationType<Operation>, kIndex, &operation);
  }
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_OPERATION_QUEUE_H_
