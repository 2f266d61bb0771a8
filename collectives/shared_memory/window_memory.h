// WindowMemory: shared memory that a rank has in its process because of what it
// does in a group, beside its own buffers: for those who plan how much memory a
// job takes.
//
//   int64_t bytes = GroupMemory(8, /*is_world=*/true) +
//                   WindowMemory({.ranks = 8, .crowded = true},
//                                OpKind::kReduceScatter, 1 << 20);
//
// Ordinary buffers are shown to the other ranks through windows, of which every
// rank has one for each of its groups, made at the first collective that needs
// it. A page counts in every process that has touched it: those of a rank's own
// window, and what it reads of the others'. So they are resident from the first
// few collectives of a kind on, and the more of them the larger its messages
// are, up to a few MiB. Buffers of AllocateShared need none.
//
// By what the collectives of collectives/host_memory do, in whole pages. Linux
// maps those around one that is read as well where somebody has written them
// already (fault-around, 64 KiB), so that a process may have a third less or
// more.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_

#include <cstdint>

#include "collectives/host_memory/tuning.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct WindowUser {
  int64_t rank = 0;
  int64_t ranks = 1;
  // The machine has fewer processors than the job has ranks on it.
  bool crowded = false;
  Tuning tuning = {};
};

// Of collectives of one kind whose largest message has `bytes`, as
// Communicator::Statistics counts them. Sends and receives: of one peer.
int64_t WindowMemory(const WindowUser& user, OpKind kind, int64_t bytes);

// The same where an algorithm over messages carries collectives out, as
// choosers may have it for large ones where ranks share processors: channels to
// all ranks, and the scratch of reductions in the order of ranks.
int64_t ChannelMemory(const WindowUser& user, OpKind kind, int64_t bytes);

// What the ranks of a group share to synchronise, and what a communicator
// records.
int64_t GroupMemory(int64_t ranks, bool is_world);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_WINDOW_MEMORY_H_
