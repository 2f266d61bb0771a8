// The part of the torch.distributed backend that does not depend on torch: the
// communicators of the job's groups, and a guard against the use of a group
// after a fork. backend.cc adapts it to torch.
//
//   const GroupPlace place = {.rank = 1, .size = 4, .members = {0, 2, 4, 6}};
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<Communicator> group,
//       JoinGroup(place, [&] { return std::make_unique<TorchStore>(...); }));
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

// Enables the detection of forks. Call it once, before groups are created.
void WatchForks();

// Detects that the process was forked after the guard was created. In the child
// the threads of existing objects are gone, and their memory is shared with the
// parent, so these objects must be neither used nor freed.
class ForkGuard {
 public:
  ForkGuard();

  bool IsForked() const;
  // FailedPrecondition in a forked process.
  absl::Status Check() const;

  // Frees an object of this process; leaks it in a forked process.
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
  absl::Duration timeout = absl::InfiniteDuration();  // Per operation.
  std::string name = {};
  // The members as ranks of the job; empty if unknown.
  std::vector<int64_t> members = {};
};

// Creates the communicator of a group; all members must call it. The first
// group with all ranks of the job becomes the world. Later groups use the
// world's shared memory and need no rendezvous; other groups rendezvous through
// `store`. Returns the errors of CreateSharedMemoryEngine and
// Communicator::Subgroup.
absl::StatusOr<std::shared_ptr<collectives::Communicator>> JoinGroup(
    const GroupPlace& place,
    absl::FunctionRef<std::unique_ptr<collectives::Store>()> store);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
