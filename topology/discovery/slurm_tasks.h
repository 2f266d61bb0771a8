// SLURM_TASKS_PER_NODE: how many tasks each node of a Slurm step runs.
//
//   ParseSlurmTasksPerNode("2(x3),1");    // {{2, 3}, {1, 1}}: 2, 2, 2, 1
//
// Form: "OUTPUT ENVIRONMENT VARIABLES" of the sbatch manual.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_SLURM_TASKS_H_
#define TESSERA_TOPOLOGY_DISCOVERY_SLURM_TASKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::topology {

// `nodes` nodes in a row with `tasks` tasks each.
struct SlurmTaskRun {
  int64_t tasks = 1;
  int64_t nodes = 1;

  friend bool operator==(const SlurmTaskRun&, const SlurmTaskRun&) = default;
};

// InvalidArgument where the text is no such list, a number is below 1, or all
// nodes together exceed 2^20 or their tasks 2^40.
absl::StatusOr<std::vector<SlurmTaskRun>> ParseSlurmTasksPerNode(
    std::string_view text);

// The text of `runs`; ParseSlurmTasksPerNode reads it back.
std::string FormatSlurmTasksPerNode(const std::vector<SlurmTaskRun>& runs);

// How many nodes and tasks there are in all.
int64_t SlurmNodeCount(const std::vector<SlurmTaskRun>& runs);
int64_t SlurmTaskCount(const std::vector<SlurmTaskRun>& runs);

// The tasks of one node, or nothing where there is no such node.
std::optional<int64_t> SlurmTasksOfNode(const std::vector<SlurmTaskRun>& runs,
                                        int64_t node);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_SLURM_TASKS_H_
