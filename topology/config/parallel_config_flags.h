// ParallelConfig from the command line.
//
//   job --parallel_config=job.json --mesh=dp2,pp2,tp2 --schedule=zb_h1
//
//   TESSERA_ASSIGN_OR_RETURN(auto config, ParallelConfigFromFlags());
//   TESSERA_RETURN_IF_ERROR(config.ValidateForWorld(world_size));
//
// Linking this library declares the Abseil flags --parallel_config, --mesh,
// --order, --layers, --micro_batch_size, --micro_batches, --memory_strategy,
// --strategy, --schedule, --chunks, --precision, --device_memory and --timeout.
#ifndef TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_FLAGS_H_
#define TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_FLAGS_H_

#include "absl/status/statusor.h"
#include "topology/config/parallel_config.h"

namespace tessera::topology {

// The file of --parallel_config, or the defaults where there is none, with
// every flag that was given on top. --mesh sets all sizes at once: an axis that
// it does not name has size 1. A flag given empty, "--order=", counts as not
// given. Not validated. Errors name the flag.
absl::StatusOr<ParallelConfig> ParallelConfigFromFlags();

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_FLAGS_H_
