// The part of the torch.distributed backend that does not depend on torch: the
// communicators of the job's groups, and a guard against the use of a group
// after a fork. backend.cc adapts it to torch.
//
//   JobGroups groups;
//   const GroupPlace place = {.rank = 1, .size = 4, .members = {0, 2, 4, 6}};
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<Communicator> group,
//       groups.Join(place, [&] { return std::make_unique<TorchStore>(...); }));
#ifndef TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
#define TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
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
  int generation_;
};

// A rank's place in a group.
struct GroupPlace {
  int rank = 0;
  int size = 1;
  absl::Duration timeout = absl::InfiniteDuration();  // Per operation.
  std::string name = {};
  // The members as ranks of the job. Empty for the world: the default group,
  // which has all ranks of the job.
  std::vector<int64_t> members = {};
};

// The groups of one rank of a job. Thread-safe.
class JobGroups {
 public:
  // Creates the communicator of a group; all members must call it.
  //
  // The world's ranks meet through `store`. Groups that are created while the
  // world exists lie in its shared memory and do not use the store, also if an
  // error broke the world's communicator. If there is no world (the default
  // group has another backend), the members of each group meet through
  // `store`. A new world replaces the previous one.
  //
  // InvalidArgument if the members do not fit the size and the rank, or for the
  // reasons of Communicator::Subgroup; otherwise the errors of
  // CreateSharedMemoryEngine and Communicator::Subgroup.
  absl::StatusOr<std::shared_ptr<collectives::Communicator>> Join(
      const GroupPlace& place,
      absl::FunctionRef<std::unique_ptr<collectives::Store>()> store);

 private:
  std::shared_ptr<collectives::Communicator> FindRoot();

  std::mutex mutex_;
  // Has the world's ranks and runs no operation, so that it does not break.
  // The world's communicator owns it.
  std::weak_ptr<collectives::Communicator> root_;
  ForkGuard root_guard_;
};

// The prefix of a group's keys in a store that outlives the group: it differs
// between the attempts of a job that torchrun restarts (`restarts` is the text
// of TORCHELASTIC_RESTART_COUNT, null if it is not set) and between the times
// that this rank has joined a group of this name in this attempt.
std::string StorePrefix(const char* restarts,
                        absl::FunctionRef<int64_t(const std::string&)> add,
                        int rank);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
