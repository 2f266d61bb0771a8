#include "tools/python/torch/process_group.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::torch_backend {
namespace {

using collectives::Communicator;
using collectives::Rank;

// Incremented in each forked process.
std::atomic<int> process_generation = 0;

absl::Status CheckPlace(const GroupPlace& place) {
  if (place.size >= 1 && place.rank >= 0 && place.rank < place.size &&
      (place.members.empty() ||
       static_cast<int64_t>(place.members.size()) == place.size)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "group ", place.name, ": rank ", place.rank, " of ", place.size, " with ",
      place.members.size(),
      " members; give the rank of each member, or none for the world"));
}

// The world's communicator, and the one that contains all groups.
struct World {
  std::shared_ptr<Communicator> root;
  std::shared_ptr<Communicator> group;
};

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

std::shared_ptr<Communicator> JobGroups::FindRoot() {
  const std::lock_guard lock(mutex_);
  return root_guard_.IsForked() ? nullptr : root_.lock();
}

absl::StatusOr<std::shared_ptr<Communicator>> JobGroups::Join(
    const GroupPlace& place,
    absl::FunctionRef<std::unique_ptr<collectives::Store>()> store) {
  TESSERA_RETURN_IF_ERROR(CheckPlace(place));
  std::vector<Rank> ranks;
  for (const int64_t member : place.members) ranks.push_back(Rank(member));
  const bool is_world = ranks.empty();
  std::shared_ptr<Communicator> root = is_world ? nullptr : FindRoot();
  if (root == nullptr) {
    const std::unique_ptr<collectives::Store> meeting = store();
    TESSERA_ASSIGN_OR_RETURN(root, Meet(place, *meeting));
    if (!is_world) return root;
    ranks = collectives::AllRanks(place.size);
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                           root->Subgroup(ranks, place.name, place.timeout));
  if (!is_world) return group;
  {
    const std::lock_guard lock(mutex_);
    root_ = root;
    root_guard_ = ForkGuard();
  }
  const auto world =
      std::make_shared<World>(World{std::move(root), std::move(group)});
  return std::shared_ptr<Communicator>(world, world->group.get());
}

std::string StorePrefix(const char* restarts,
                        absl::FunctionRef<int64_t(const std::string&)> add,
                        int rank) {
  const std::string attempt =
      absl::StrCat("tessera/", restarts == nullptr ? "0" : restarts, "/");
  return absl::StrCat(attempt, add(absl::StrCat(attempt, "joins/", rank)), "/");
}

}  // namespace tessera::torch_backend
