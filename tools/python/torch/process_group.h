// The part of the torch.distributed backend that does not depend on torch: the
// communicators of the job's groups, and a guard against the use of a group
// after a fork. backend.cc adapts it to torch.
//
//   JobGroups groups;
//   const GroupPlace place = {.rank = 1, .size = 4, .members = {0, 2, 4, 6}};
//   TESSERA_ASSIGN_OR_RETURN(
//       const JoinedGroup group,
//       groups.Join(place, [&] { return Meeting{store, create_network}; }));
#ifndef TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
#define TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
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
#include "collectives/engine/engine.h"

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

// What ranks need that have no group in common yet.
struct Meeting {
  std::shared_ptr<collectives::Store> store;
  // Creates the engine between hosts, for all ranks of `store`.
  std::function<absl::StatusOr<std::unique_ptr<collectives::Engine>>()>
      create_network = nullptr;
  // As TwoLevelOptions::host.
  std::string host = "";
};

// A group, and what it needs.
struct JoinedGroup {
  std::shared_ptr<collectives::Store> store;
  // Of the world only: contains all groups, and runs no operation, so that it
  // does not break.
  std::shared_ptr<collectives::Communicator> root;
  std::shared_ptr<collectives::Communicator> communicator;
};

// The groups of one rank of a job. Thread-safe.
class JobGroups {
 public:
  // Creates the communicator of a group; all members must call it.
  //
  // The world's ranks meet through the store of `meet`, which they then keep.
  // They use shared memory within each host and the network between hosts.
  // Groups that are created while the world exists use its memory and its
  // network and do not meet, also if an error broke the world's communicator.
  // If there is no world (the default group has another backend), the members
  // of each group meet. A new world replaces the previous one.
  //
  // InvalidArgument if the members do not fit the size and the rank, or for the
  // reasons of Communicator::Subgroup; otherwise the errors of `meet`,
  // CreateTwoLevelEngine and Communicator::Subgroup.
  absl::StatusOr<JoinedGroup> Join(
      const GroupPlace& place,
      absl::FunctionRef<absl::StatusOr<Meeting>()> meet);

 private:
  // Without a communicator if there is no world.
  JoinedGroup FindWorld();

  std::mutex mutex_;
  // The world's. Its group owns them.
  std::weak_ptr<collectives::Store> store_;
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
