// Rank and AxisSize: strong types for ranks and sizes of axes.
#ifndef TESSERA_TOPOLOGY_RANK_H_
#define TESSERA_TOPOLOGY_RANK_H_

#include "base/strong_int.h"

namespace tessera::topology {

// The number of a process in its job, from 0 to world size - 1.
using Rank = StrongInt<struct RankTag>;

// The number of ranks along an axis or in a world.
using AxisSize = StrongInt<struct AxisSizeTag>;

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_RANK_H_
