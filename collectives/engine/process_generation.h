// ProcessGeneration: tells a process from the children that it forks.
//
//   const uint64_t born = ProcessGeneration();
//   ...
//   if (ProcessGeneration() != born) { /* this is a forked child */ }
#ifndef TESSERA_COLLECTIVES_ENGINE_PROCESS_GENERATION_H_
#define TESSERA_COLLECTIVES_ENGINE_PROCESS_GENERATION_H_

#include <cstdint>

namespace tessera::collectives {

// How often fork lies between this process and the first one that called this.
// Costs a load, where getpid is a system call. Thread-safe.
uint64_t ProcessGeneration();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_PROCESS_GENERATION_H_
