#include "collectives/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

// Written only by the fork handler below, in a child with a single thread.
std::atomic<uint64_t> generation = 0;

void CountFork() { generation.fetch_add(1, std::memory_order_relaxed); }

class ResourceMemory final : public SharedMemory {
 public:
  explicit ResourceMemory(tessera::Buffer memory)
      : memory_(std::move(memory)) {}

  std::span<std::byte> bytes() const override {
    return const_cast<tessera::Buffer&>(memory_).bytes();
  }
  MemoryKind kind() const override { return memory_.kind(); }

 private:
  tessera::Buffer memory_;
};

}  // namespace

uint64_t ProcessGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, CountFork);
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateSharedFrom(
    std::shared_ptr<MemoryResource> resource, int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot allocate ", bytes, " bytes; use at least 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      tessera::Buffer memory,
      tessera::Buffer::Allocate(std::move(resource),
                                static_cast<size_t>(bytes)));
  return std::make_unique<ResourceMemory>(std::move(memory));
}

absl::StatusOr<Event> Engine::Enqueue(const Operation&, const EnqueueCall&) {
  return absl::UnimplementedError(absl::StrCat(
      "engine ", name(), " is of the host; it enqueues no operations"));
}

void Engine::OnError(std::function<void(const absl::Status&)>) {}

std::vector<Rank> AllRanks(int64_t size) {
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < size; ++r) ranks.push_back(Rank(r));
  return ranks;
}

absl::StatusOr<std::unique_ptr<Engine>> Duplicate(Engine& engine,
                                                  uint32_t group,
                                                  absl::Duration timeout) {
  return engine.CreateSubgroup(
      AllRanks(engine.size()), group,
      DeadlineAfter(std::min(timeout, absl::Hours(1))));
}

}  // namespace tessera::collectives
