// The shared_memory engine: ranks are processes of one host.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(auto engine,
//                            CreateSharedMemoryEngine(*job.store));
//   TESSERA_ASSIGN_OR_RETURN(auto communicator,
//                            Communicator::Create(std::move(engine)));
//   TESSERA_ASSIGN_OR_RETURN(auto gradients,
//                            communicator->AllocateShared(1 << 30));
//
// All ranks map one segment, an unnamed memfd that is freed with the last
// process. Collectives on buffers from AllocateShared make no copies; other
// buffers are staged through windows in the caches. See collectives/README.md.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"
#include "collectives/host_memory/tuning.h"

namespace tessera::collectives {

// The processors and permissions of a rank, exchanged so that all ranks make
// the same decisions.
struct RankCapabilities {
  int64_t usable_processors = 1;        // By CPU mask and quota.
  std::vector<int> allowed_processors;  // Their numbers.
  bool reads_peers = false;             // May read its peers' memory.

  // Converts to a text such as "2 1 0,1" and back. InvalidArgument if
  // malformed.
  std::string ToString() const;
  static absl::StatusOr<RankCapabilities> Parse(std::string_view text);

  friend bool operator==(const RankCapabilities&,
                         const RankCapabilities&) = default;
};

// The number of processors that the ranks of a host can use together; at
// least 1. Considers the union of their masks and the smallest cgroup quota.
int64_t ProcessorsTogether(std::span<const RankCapabilities> ranks);

struct SharedMemoryOptions {
  // The ranks of the store that form the world, in its order; they are on one
  // host. Empty: all ranks of the store. Other ranks do not call.
  std::vector<Rank> members = {};

  Tuning tuning = {};  // All ranks use rank 0's values.

  // Distinguishes several worlds of one job.
  std::string name = "world";

  // The longest time to wait for the other ranks.
  absl::Duration timeout = absl::Minutes(1);

  // Limit for this rank's memory in the segment: windows, channels and
  // AllocateShared.
  int64_t memory_limit = std::numeric_limits<int64_t>::max();

  // Address space (not memory) of each rank in the segment; reduced if the
  // process may not have so much.
  int64_t slice_bytes = int64_t{64} << 30;
};

// Creates this rank's engine in a new world of the store's ranks. A collective
// of its members. FailedPrecondition if ranks are on different hosts (or in
// containers that cannot see each other's processes), ResourceExhausted if a
// rank cannot map the segment or memory is short; every rank gets the error,
// which names the failing rank. The store may be destroyed when all ranks have
// returned.
absl::StatusOr<std::unique_ptr<Engine>> CreateSharedMemoryEngine(
    Store& store, const SharedMemoryOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_H_
