// OperationList, the operations that a queue supports, and KernelTable, the
// kernels of a backend for them. operation_queue.h executes them.
#ifndef TESSERA_BASE_DEVICE_OPERATION_H_
#define TESSERA_BASE_DEVICE_OPERATION_H_

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "absl/status/status.h"

namespace tessera {

class OperandChecker;

// The operations that a queue supports, in a fixed order without duplicates.
template <typename... Operations>
struct OperationList {
  static constexpr size_t kSize = sizeof...(Operations);

  // The position of an operation; kSize if it is not in the list.
  template <typename Operation>
  static constexpr size_t IndexOf() {
    size_t index = 0;
    static_cast<void>(
        ((std::is_same_v<Operation, Operations> || (++index, false)) || ...));
    return index;
  }

  // Calls visit(std::type_identity<Operation>()) for each operation.
  template <typename Visit>
  static constexpr void ForEach(const Visit& visit) {
    (visit(std::type_identity<Operations>()), ...);
  }
};

template <typename... Lists>
struct JoinLists;
template <typename... A>
struct JoinLists<OperationList<A...>> {
  using Type = OperationList<A...>;
};
template <typename... A, typename... B, typename... Rest>
struct JoinLists<OperationList<A...>, OperationList<B...>, Rest...> {
  using Type = typename JoinLists<OperationList<A..., B...>, Rest...>::Type;
};
template <typename... Lists>
using Joined = typename JoinLists<Lists...>::Type;

// A kernel with the types of its backend and operation erased.
struct OperationKernel {
  using Run = absl::Status (*)(void* backend, const void* operation);
  using Check = void (*)(const void* backend, const void* operation,
                         OperandChecker& check);

  Run run = nullptr;      // Null if the backend does not support the operation.
  Check check = nullptr;  // The backend's own requirements; may be null.
};

// The kernels of a backend for the operations of a list.
template <typename Backend, typename List>
class KernelTable {
 public:
  // Adds a kernel for each of `Operations`: a lambda without captures that
  // takes (backend, operation) and returns a status.
  template <typename... Operations, typename RunOne>
  KernelTable& Add(RunOne) {
    static_assert(std::is_empty_v<RunOne>);
    ((kernels_[Index<Operations>()].run =
          [](void* backend, const void* operation) -> absl::Status {
       return RunOne{}(*static_cast<Backend*>(backend),
                       *static_cast<const Operations*>(operation));
     }),
     ...);
    return *this;
  }
  // Adds a check(backend, operation, checker) that runs after the operation's
  // own check.
  template <typename... Operations, typename CheckOne>
  KernelTable& AddCheck(CheckOne) {
    static_assert(std::is_empty_v<CheckOne>);
    ((kernels_[Index<Operations>()].check =
          [](const void* backend, const void* operation,
             OperandChecker& check) {
            CheckOne{}(*static_cast<const Backend*>(backend),
                       *static_cast<const Operations*>(operation), check);
          }),
     ...);
    return *this;
  }

  std::span<const OperationKernel> kernels() const { return kernels_; }

 private:
  template <typename Operation>
  static constexpr size_t Index() {
    constexpr size_t kIndex = List::template IndexOf<Operation>();
    static_assert(kIndex < List::kSize, "the list has no such operation");
    return kIndex;
  }

  std::array<OperationKernel, List::kSize> kernels_ = {};
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_OPERATION_H_
