// The steps of Bruck's algorithms: in step k a rank talks to those 2^k away,
// and after CeilLog2(ranks) steps, for any number of ranks, all is where it
// belongs. Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms
// for all-to-all communications in multiport message-passing systems", IEEE
// TPDS 8(11), 1997.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_SCHEDULE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

namespace tessera::collectives {

// All-gather. With blocks counted from the rank's own on (block j is that of
// rank + j), a rank has 2^k blocks before step k, and gets this many more from
// rank + 2^k, which are the first ones there.
constexpr int64_t BruckGatherBlocks(int64_t ranks, int64_t k) {
  const int64_t had = int64_t{1} << k;
  return std::min(had, ranks - had);
}

// All-to-all. Whether slot j, the block for rank + j, moves in step k: on to
// rank + 2^k, there to the same slot.
constexpr bool BruckSlotMoves(int64_t slot, int64_t k) {
  return (slot >> k & 1) != 0;
}

// How many slots move in step k.
constexpr int64_t BruckMovingSlots(int64_t ranks, int64_t k) {
  const int64_t period = int64_t{2} << k;
  const int64_t half = int64_t{1} << k;
  return ranks / period * half + std::max<int64_t>(0, ranks % period - half);
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_SCHEDULE_H_
