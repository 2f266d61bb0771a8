#include "tools/python/torch/process_group.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::torch_backend {
namespace {

using collectives::Communicator;
using collectives::Rank;

// Incremented in each forked process.
std::atomic<int> process_generation = 0;

// The group of all ranks of the job, whose shared memory contains the other
// groups.
struct World {
  std::weak_ptr<Communicator> communicator;
  int generation = 0;
};
std::mutex world_mutex;
World world;

std::shared_ptr<Communicator> FindWorld() {
  const std::lock_guard lock(world_mutex);
  return world.generation == process_generation ? world.communicator.lock()
                                                : nullptr;
}

// True if the members are all ranks, in order.
bool HasAllRanks(const GroupPlace& place) {
  if (static_cast<int64_t>(place.members.size()) != place.size) return false;
  for (size_t i = 0; i < place.members.size(); ++i) {
    if (place.members[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<Communicator>> Meet(const GroupPlace& place,
                                                   collectives::Store& store) {
  collectives::SharedMemoryOptions memory;
  memory.name = place.name;
  memory.timeout = place.timeout;
  memory.slice_bytes = int64_t{16} << 30;
  TESSERA_ASSIGN_OR_RETURN(
      auto engine, collectives::CreateSharedMemoryEngine(store, memory));
  collectives::CommunicatorOptions options;
  options.name = place.name;
  options.timeout = place.timeout;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                           Communicator::Create(std::move(engine), options));
  return group;
}

}  // namespace

void WatchForks() {
  pthread_atfork(nullptr, nullptr, [] { ++process_generation; });
}

ForkGuard::ForkGuard() : generation_(process_generation) {}

bool ForkGuard::IsForked() const { return generation_ != process_generation; }

absl::Status ForkGuard::Check() const {
  if (!IsForked()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the process group was made before this process was forked (now process ",
      getpid(), "); use the spawn method, or make the group after the fork"));
}

absl::StatusOr<std::shared_ptr<Communicator>> JoinGroup(
    const GroupPlace& place,
    absl::FunctionRef<std::unique_ptr<collectives::Store>()> store) {
  const std::shared_ptr<Communicator> parent = FindWorld();
  const bool is_inside =
      parent != nullptr && parent->status().ok() && !place.members.empty() &&
      *std::max_element(place.members.begin(), place.members.end()) <
          parent->size();
  if (is_inside) {
    std::vector<Rank> ranks;
    for (const int64_t member : place.members) ranks.push_back(Rank(member));
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                             parent->Subgroup(ranks, place.name));
    return group;
  }
  const std::unique_ptr<collectives::Store> meeting = store();
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                           Meet(place, *meeting));
  if (parent == nullptr && HasAllRanks(place)) {
    const std::lock_guard lock(world_mutex);
    world = {group, process_generation};
  }
  return group;
}

}  // namespace tessera::torch_backend
