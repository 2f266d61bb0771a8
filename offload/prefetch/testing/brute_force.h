// Optimal answers for small steps by exhaustive search: the references for the
// bound. Blocks are the distinct keys of the order; times
// are nanoseconds, and one byte takes one nanosecond.
#ifndef TESSERA_OFFLOAD_PREFETCH_TESTING_BRUTE_FORCE_H_
#define TESSERA_OFFLOAD_PREFETCH_TESTING_BRUTE_FORCE_H_

#include <cstdint>
#include <random>
#include <vector>

#include "offload/prefetch/load_bound.h"

namespace tessera::offload {

// For each use k, the minimum number of bytes loaded to serve uses 0..k, over
// all contents of near memory before each use. At most 16 keys; the step must
// be feasible.
std::vector<int64_t> BruteForceLeastBytes(const std::vector<BlockUse>& order,
                                          int64_t budget,
                                          const std::vector<NearBlock>& near);

// The shortest time of the step over all schedules that, at any nanosecond,
// evict any blocks not in use and start any load. Stores are free. At most 8
// keys; the step must be feasible.
int64_t BruteForceShortestStep(const std::vector<BlockUse>& order,
                               int64_t budget,
                               const std::vector<NearBlock>& near);

// A step of at most `uses` uses of at most `keys` keys.
struct RandomStep {
  std::vector<BlockUse> order;
  std::vector<NearBlock> near;
  int64_t budget = 0;  // enough for every block
};
struct RandomStepOptions {
  int keys = 4;
  int uses = 8;
  int64_t most_bytes = 3;
  int64_t most_compute_ns = 4;
  bool one_size = false;
  bool overwrites = false;  // a third of the uses
};
RandomStep MakeRandomStep(std::mt19937_64& random,
                          const RandomStepOptions& options);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_TESTING_BRUTE_FORCE_H_
