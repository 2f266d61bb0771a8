#include "collectives/shared_memory/run_shared_memory.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"

namespace tessera::collectives {

std::vector<RankOutcome> RunSharedMemory(
    int64_t ranks, const RankBody& body, const CommunicatorOptions& options,
    const SharedMemoryOptions& shared_memory) {
  auto sockets = MakeInheritedSockets(ranks);
  if (!sockets.ok()) return {{sockets.status(), 0, absl::ZeroDuration()}};
  // Lives until the rank's process ends.
  std::unique_ptr<Store> store;
  const auto engine =
      [&](int64_t rank) -> absl::StatusOr<std::unique_ptr<Engine>> {
    const auto self = static_cast<size_t>(rank);
    for (size_t r = 0; r < sockets->size(); ++r) {
      if (r != self) (*sockets)[r].sockets.clear();
    }
    if (!(*sockets)[self].PassOn()) return absl::InternalError("PassOn");
    for (UniqueFd& socket : (*sockets)[self].sockets) {
      static_cast<void>(socket.Release());  // The store takes ownership.
    }
    TESSERA_ASSIGN_OR_RETURN(
        store, OpenInheritedStore((*sockets)[self].value, Rank(rank), ranks,
                                  absl::Now() + absl::Seconds(60)));
    return CreateSharedMemoryEngine(*store, shared_memory);
  };
  return RunProcesses(ranks, engine, body, options, absl::Seconds(120),
                      [&] { sockets->clear(); });
}

}  // namespace tessera::collectives
