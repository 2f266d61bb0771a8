// Tournament: rounds in which every rank meets every other exactly once, and in
// each round the partner of its partner is the rank itself (a 1-factorisation
// of the complete graph with loops). In `ranks` rounds a rank meets itself
// once.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_TOURNAMENT_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_TOURNAMENT_H_

#include <cstdint>

namespace tessera::collectives {

constexpr int64_t TournamentPartner(int64_t ranks, int64_t rank,
                                    int64_t round) {
  return (round + ranks - rank) % ranks;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_TOURNAMENT_H_
