// Predicts the resident shared memory that a rank needs for collectives in a
// group, besides its own buffers. For memory planning.
//
//   int64_t bytes = GroupMemory(8, /*is_world=*/true) +
//                   WindowMemory({.ranks = 8, .crowded = true},
//                                OpKind::kReduceScatter, 1 << 20);
//
// Ordinary buffers are staged through windows. A rank has one window per group,
// created by the first collective that needs it. A page counts in every process
// that accessed it, so a rank counts the pages of its own window and the pages
// that it reads of other windows. Up to a few MiB become resident within the
// first collectives of a kind, more for larger messages. Buffers from
// AllocateShared need no window.
//
// Derived from the algorithms in collectives/host_memory, in whole pages. Linux
// also maps written pages around one that is read (fault-around, 64 KiB), so
// the actual value may differ by a third.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_

#include <cstdint>

#include "collectives/host_memory/tuning.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct WindowUser {
  int64_t rank = 0;
  int64_t ranks = 1;
  // True if the host has fewer processors than ranks.
  bool crowded = false;
  Tuning tuning = {};
};

// Bytes for collectives of one kind whose largest message has `bytes` bytes (as
// in Communicator::Statistics). Sends and receives count per peer.
int64_t WindowMemory(const WindowUser& user, OpKind kind, int64_t bytes);

// Bytes if an algorithm over messages executes the collectives: channels to all
// ranks, and scratch memory of rank-order reductions. Choosers may prefer this
// for large messages if ranks share processors.
int64_t ChannelMemory(const WindowUser& user, OpKind kind, int64_t bytes);

// Bytes of a group's control block and of a communicator's records.
int64_t GroupMemory(int64_t ranks, bool is_world);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_
