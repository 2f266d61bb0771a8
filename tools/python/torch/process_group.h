// What a torch.distributed backend needs of Tessera, without torch: the
// communicators of the job's groups, the thread that runs asynchronous
// collectives in order, and a guard against the use of a group after a fork.
// backend.cc adapts it to one release of torch.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<Communicator> group,
//       JoinGroup({.rank = 1, .size = 4, .name = "tp", .members = {0, 2, 4,
//       6}},
//                 [&] { return std::make_unique<TorchStore>(...); }));
#ifndef TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_
#define TESSERA_TOOLS_PYTHON_TORCH_PROCESS_GROUP_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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

// Whether the process was forked since the guard was made. What was made before
// a fork has threads there that do not exist, and shares memory with the
// parent: it is neither used nor freed.
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

// Runs collectives that nobody waits for at once, in order, on a thread that
// begins with the first of them. A caller that waits anyway may run its own
// between TryEnter and Leave.
class Lane {
 public:
  // Waits for all jobs.
  ~Lane();

  // True if the lane is idle; the caller then holds it until Leave.
  bool TryEnter();
  void Leave();

  // Waits until there are no jobs; false if there are some at the deadline.
  bool AwaitIdle(std::chrono::steady_clock::time_point deadline);

  void Push(std::function<void()> job);

 private:
  void RunJobs();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  bool closing_ = false;
  std::thread thread_;
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
