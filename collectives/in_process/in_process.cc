#include "collectives/in_process/in_process.h"

#include <unistd.h>

#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/host_memory/domain.h"
#include "collectives/host_memory/host_memory_engine.h"

namespace tessera::collectives {
namespace {

using host_memory::Announcement;
using host_memory::kAnnouncements;

// The memory shared by the ranks of a world.
class World {
 public:
  explicit World(int64_t ranks)
      : announcements_(static_cast<size_t>(ranks * kAnnouncements)) {}
  ~World() {
    for (std::byte* memory : allocated_) Release(memory);
  }

  absl::StatusOr<std::byte*> Allocate(int64_t bytes) {
    auto* const memory = static_cast<std::byte*>(
        ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow));
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot allocate ", bytes, " bytes"));
    }
    std::memset(memory, 0, static_cast<size_t>(bytes));
    const std::lock_guard lock(mutex_);
    allocated_.insert(memory);
    return memory;
  }

  void Free(std::byte* memory) {
    {
      const std::lock_guard lock(mutex_);
      allocated_.erase(memory);
    }
    Release(memory);
  }

  Announcement* AnnouncementsOf(int64_t rank) {
    return &announcements_[static_cast<size_t>(rank * kAnnouncements)];
  }

 private:
  static constexpr std::align_val_t kAlignment{64};

  static void Release(std::byte* memory) {
    ::operator delete(memory, kAlignment);
  }

  std::vector<Announcement> announcements_;
  std::mutex mutex_;
  // Frees blocks that are still allocated when the last rank leaves.
  absl::flat_hash_set<std::byte*> allocated_;
};

class InProcessDomain : public host_memory::Domain {
 public:
  InProcessDomain(std::shared_ptr<World> world, int64_t rank, int64_t size,
                  bool reach_buffers)
      : world_(std::move(world)),
        rank_(rank),
        size_(size),
        processors_(AvailableProcessors()) {
    end_ = std::numeric_limits<uintptr_t>::max();
    reaches_user_memory_ = reach_buffers;
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    return world_->Allocate(bytes);
  }
  void Free(std::byte* memory) override { world_->Free(memory); }
  Announcement* AnnouncementsOf(int64_t rank) override {
    return world_->AnnouncementsOf(rank);
  }
  // Threads do not die without leaving, and leaving is recorded in RankStatus.
  bool IsDead(int64_t) override { return false; }
  std::string HostOf(int64_t) const override { return ""; }
  int64_t PidOf(int64_t) const override { return getpid(); }
  int64_t processors() const override { return processors_; }

 private:
  const std::shared_ptr<World> world_;
  const int64_t rank_;
  const int64_t size_;
  const int64_t processors_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Engine>>> CreateInProcessEngines(
    int64_t ranks, const InProcessOptions& options) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot create a world of ", ranks, " ranks; at least 1 is needed"));
  }
  const auto world = std::make_shared<World>(ranks);
  std::vector<int64_t> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<Engine>> engines;
  host_memory::GroupBlock block;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto domain = std::make_shared<InProcessDomain>(world, rank, ranks,
                                                    options.reach_buffers);
    if (rank == 0) {
      TESSERA_ASSIGN_OR_RETURN(
          block, host_memory::CreateGroupBlock(
                     *domain, ranks, host_memory::kWorldGroup, options.tuning));
    }
    engines.push_back(std::make_unique<host_memory::HostMemoryEngine>(
        "in_process", std::move(domain), block, members, rank == 0));
  }
  return engines;
}

}  // namespace tessera::collectives
