// Rank: the number of one process of a job, from 0 to world size - 1.
#ifndef TESSERA_TOPOLOGY_RANK_H_
#define TESSERA_TOPOLOGY_RANK_H_

#include "base/strong_int.h"

namespace tessera::topology {

// A process's number. Not interchangeable with a coordinate or a size.
using Rank = StrongInt<struct RankTag>;

// How many ranks lie along an axis or in a world.
using AxisSize = StrongInt<struct AxisSizeTag>;

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_RANK_H_
