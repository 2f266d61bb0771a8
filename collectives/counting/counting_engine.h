// CountingEngine: one rank of a world whose other ranks do not exist. Each
// operation completes immediately, so that the communicator's statistics show
// the messages of a program on n ranks without running them.
//
//   auto memory = std::make_shared<CountingMemory>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine,
//       CreateCountingEngine(
//           {.rank = Rank(3), .ranks = 64, .memory = memory}));
//   TESSERA_ASSIGN_OR_RETURN(auto world,
//                            Communicator::Create(std::move(engine)));
//   ... the program of rank 3 ...
//   for (const auto& [key, totals] : world->StatisticsWithSubgroups()) ...
//
// Operations on buffers in `memory` move no data. For other buffers, such as
// sizes and hashes that ranks compare, every other rank is assumed to pass the
// same input as this one: all-gathers repeat this rank's block, reductions
// return their input, and operations whose result only another rank knows
// (broadcasts, receives) leave the output unchanged. AllocateShared allocates
// from `memory`.
#ifndef TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_
#define TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/tensor/counting_memory.h"
#include "collectives/engine/engine.h"
#include "topology/rank.h"

namespace tessera::collectives {

struct CountingWorld {
  Rank rank = {};
  int64_t ranks = 1;
  std::shared_ptr<CountingMemory> memory = nullptr;
};

// The engine of rank `world.rank`. InvalidArgument if there is no such rank, or
// if memory is null.
absl::StatusOr<std::unique_ptr<Engine>> CreateCountingEngine(
    const CountingWorld& world);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_
