#include "tools/python/torch/process_group.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/two_level/two_level_engine.h"

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

absl::StatusOr<JoinedGroup> Meet(const GroupPlace& place, Meeting meeting) {
  collectives::TwoLevelOptions two_level;
  two_level.host = std::move(meeting.host);
  collectives::SharedMemoryOptions& memory = two_level.shared_memory;
  memory.name = place.name;
  memory.timeout = place.timeout;
  memory.slice_bytes = int64_t{16} << 30;
  TESSERA_ASSIGN_OR_RETURN(
      auto engine, collectives::CreateTwoLevelEngine(*meeting.store, two_level,
                                                     meeting.create_network));
  collectives::CommunicatorOptions options;
  options.name = place.name;
  options.timeout = place.timeout;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                           Communicator::Create(std::move(engine), options));
  return JoinedGroup{std::move(meeting.store), nullptr, std::move(group)};
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

JoinedGroup JobGroups::FindWorld() {
  const std::lock_guard lock(mutex_);
  if (root_guard_.IsForked()) return {};
  return {store_.lock(), nullptr, root_.lock()};
}

absl::StatusOr<JoinedGroup> JobGroups::Join(
    const GroupPlace& place,
    absl::FunctionRef<absl::StatusOr<Meeting>()> meet) {
  TESSERA_RETURN_IF_ERROR(CheckPlace(place));
  std::vector<Rank> ranks;
  for (const int64_t member : place.members) ranks.push_back(Rank(member));
  const bool is_world = ranks.empty();
  JoinedGroup group = is_world ? JoinedGroup() : FindWorld();
  if (group.communicator == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(Meeting meeting, meet());
    TESSERA_ASSIGN_OR_RETURN(group, Meet(place, std::move(meeting)));
    if (!is_world) return group;
    ranks = collectives::AllRanks(place.size);
  }
  const std::shared_ptr<Communicator> root = std::move(group.communicator);
  TESSERA_ASSIGN_OR_RETURN(group.communicator,
                           root->Subgroup(ranks, place.name, place.timeout));
  if (!is_world) return group;
  group.root = root;
  const std::lock_guard lock(mutex_);
  store_ = group.store;
  root_ = root;
  root_guard_ = ForkGuard();
  return group;
}

std::string StorePrefix(const char* restarts,
                        absl::FunctionRef<int64_t(const std::string&)> add,
                        int rank) {
  const std::string attempt =
      absl::StrCat("tessera/", restarts == nullptr ? "0" : restarts, "/");
  return absl::StrCat(attempt, add(absl::StrCat(attempt, "joins/", rank)), "/");
}

}  // namespace tessera::torch_backend
