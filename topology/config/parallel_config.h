// ParallelConfig: the parallel configuration of a training job: mesh, schedule,
// types and limits.
#ifndef TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
#define TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "topology/config/mesh_sizes.h"
#include "topology/config/strategies.h"

namespace tessera::topology {

// The parallel configuration of a training job.
//
//   TESSERA_ASSIGN_OR_RETURN(MeshSizes sizes, MeshSizes::Parse("dp2,tp4"));
//   const ParallelConfig config = {.mesh = sizes, .dtype = DType::kBF16};
struct ParallelConfig {
  MeshSizes mesh = {};
  // How the pipeline runs: a generator's name, "auto", or a CSV file. A string,
  // because the names are listed by pipeline::Generators() and topology does
  // not depend on pipeline.
  std::string schedule = "1f1b";
  int64_t chunks = 1;       // Stages of a pipeline rank.
  int64_t micro_batch = 1;  // Sequences that a rank computes with at a time.
  CommunicationStrategy strategy = CommunicationStrategy::kAdaptive;
  DType dtype = DType::kF32;  // Type of weights and activations: kF32, kBF16.
  bool fp8 = false;           // Linear layers multiply in fp8; with kBF16 only.
  // Resident memory of all ranks of a machine; 0: no limit.
  ByteSize memory_limit = {};
  // How long a rank waits for another.
  absl::Duration timeout = absl::Seconds(60);

  friend bool operator==(const ParallelConfig&,
                         const ParallelConfig&) = default;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
