// RankCapabilities: what a rank has, as the others must know it: all ranks wait
// and copy by the same rules.
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

struct RankCapabilities {
  int64_t usable_processors = 1;        // At once, by mask and quota.
  std::vector<int> allowed_processors;  // Which they are.
  bool reads_peers = false;             // It may read its peers' memory.

  // A text that Parse reads back: "2 1 0,1". InvalidArgument where it is none.
  std::string ToString() const;
  static absl::StatusOr<RankCapabilities> Parse(std::string_view text);

  friend bool operator==(const RankCapabilities&,
                         const RankCapabilities&) = default;
};

// How many processors the ranks of a host have together; at least 1. Bound to
// one each, they still have one each. A quota of one rank's cgroup is taken for
// everybody's.
int64_t ProcessorsTogether(std::span<const RankCapabilities> ranks);

// shared_memory: ranks are processes of one host.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(auto engine,
//   CreateSharedMemoryEngine(*job.store)); TESSERA_ASSIGN_OR_RETURN(auto
//   communicator,
//                            Communicator::Create(std::move(engine)));
//   TESSERA_ASSIGN_OR_RETURN(auto gradients,
//                            communicator->AllocateShared(1 << 30));
//
// All ranks map one segment, a memfd that has no name and goes with the last
// process. Collectives on buffers from AllocateShared copy nothing; other
// buffers are staged through windows in the caches. See collectives/README.md.

struct SharedMemoryOptions {
  Tuning tuning = {};  // Rank 0's holds for all.

  // Tells several worlds of one job apart.
  std::string name = "world";

  // How long the ranks wait for each other.
  absl::Duration timeout = absl::Minutes(1);

  // Memory that this rank may hold in the segment, windows and channels and
  // AllocateShared together.
  int64_t memory_limit = std::numeric_limits<int64_t>::max();

  // Addresses (not memory) that each rank has in the segment. Less where the
  // process may not have so many.
  int64_t slice_bytes = int64_t{64} << 30;
};

// This rank's engine in a new world of all ranks of the store. A collective.
// FailedPrecondition where ranks are on different hosts (or in containers that
// do not see each other's processes), ResourceExhausted where a rank cannot map
// the segment or there is too little memory: on every rank, naming which one.
// The store may go when this has returned on all ranks.
absl::StatusOr<std::unique_ptr<Engine>> CreateSharedMemoryEngine(
    Store& store, const SharedMemoryOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SHARED_MEMORY_H_
