// The part of the torch.distributed backend that does not depend on torch: the
// communicators of the job's groups, and a guard against the use of a group
// after a fork. backend.cc adapts it to one release of torch.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<Communicator> group,
//       JoinGroup({.rank = 1, .size = 4, .name = "tp", .members = {0, 2, 4,
//       6}},
//                 [&] { return std::make_unique<TorchStore>(...); }));
#ifndef TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
#define TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"

namespace tessera::torch_backend {

// Call it once, before groups are made: from then on a process knows that it
// was forked.
void WatchForks();

// Detects that the process was forked since the guard was made. In the child,
// threads of objects from before the fork do not exist, and their memory is
// shared with the parent, so such objects are neither used nor freed.
class ForkGuard {
 public:
  ForkGuard();

  bool IsForked() const;
  // FailedPrecondition in a forked process.
  absl::Status Check() const;

  // Frees what was made in this process.
  template <typename Pointer>
  void Free(Pointer& pointer) const {
    if (IsForked()) {
      new Pointer(std::move(pointer));
    } else {
      pointer = nullptr;
    }
  }

 private:
  const int generation_;
};

// A rank's place in a group.
struct GroupPlace {
  int rank = 0;
  int size = 1;
  absl::Duration timeout = absl::InfiniteDuration();  // Of each operation.
  std::string name = {};
  // The ranks of the job that are its members; empty: unknown.
  std::vector<int64_t> members = {};
};

// The communicator of a group. The first group with all ranks of the job is the
// world: later groups lie in its shared memory, and no ranks need to meet for
// them. Others meet through `store`. All members call it. Errors of
// CreateSharedMemoryEngine and Communicator::Subgroup.
absl::StatusOr<std::shared_ptr<collectives::Communicator>> JoinGroup(
    const GroupPlace& place,
    absl::FunctionRef<std::unique_ptr<collectives::Store>()> store);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
