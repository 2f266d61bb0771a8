// The engines that this binary has: in_process, shared_memory, and those whose
// registration is linked (collectives/engine/engine_registry.h).
#ifndef TESSERA_TOOLS_COMM_BENCH_BUILT_IN_ENGINES_H_
#define TESSERA_TOOLS_COMM_BENCH_BUILT_IN_ENGINES_H_

#include "tools/comm_bench/engine_catalogue.h"

namespace tessera::tools {

// mpi is started by mpirun, all others as processes with a store; mpi_blocking
// is mpi with its option `blocking`. nccl is refused with Unimplemented: its
// buffers are device memory, which the benchmark does not write yet.
EngineCatalogue BuiltInEngines();

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BUILT_IN_ENGINES_H_
