// LauncherEnvironment: this process's rank, local rank and host, from the
// environment variables of the program that started it.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_
#define TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::topology {

// A run of SLURM_TASKS_PER_NODE ("OUTPUT ENVIRONMENT VARIABLES" of the sbatch
// manual): `nodes` nodes in a row with `tasks` tasks each.
struct SlurmTaskRun {
  int64_t tasks = 1;
  int64_t nodes = 1;

  friend bool operator==(const SlurmTaskRun&, const SlurmTaskRun&) = default;
};

// ParseSlurmTasksPerNode("2(x3),1");    // {{2, 3}, {1, 1}}: 2, 2, 2, 1
//
// InvalidArgument if the text is not such a list, a number is below 1, or all
// nodes together exceed 2^20 or their tasks 2^40.
absl::StatusOr<std::vector<SlurmTaskRun>> ParseSlurmTasksPerNode(
    std::string_view text);

// The total numbers of nodes and of tasks.
int64_t SlurmNodeCount(const std::vector<SlurmTaskRun>& runs);
int64_t SlurmTaskCount(const std::vector<SlurmTaskRun>& runs);

// The number of tasks of one node; nullopt if there is no such node.
std::optional<int64_t> SlurmTasksOfNode(const std::vector<SlurmTaskRun>& runs,
                                        int64_t node);

enum class Launcher { kTorchrun, kOpenMpi, kMpich, kSlurm };

// "torchrun", "Open MPI", "MPICH", "Slurm".
std::string_view LauncherName(Launcher launcher);

// The variable that selects the launcher whose variables are read, and its
// values: "auto", also if it is unset or empty, "none", and one for each
// Launcher in their order.
inline constexpr std::string_view kLauncherVariable = "TESSERA_LAUNCHER";
inline constexpr std::array<std::string_view, 6> kLauncherChoices = {
    "auto", "none", "torchrun", "openmpi", "mpich", "slurm"};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       LauncherEnvironment here,
//       ReadLauncherEnvironment([](std::string_view name) {
//         const char* value = std::getenv(std::string(name).c_str());
//         return value ? std::optional<std::string>(value) : std::nullopt;
//       }));
//
// Launchers in the order in which their variables are looked up; the innermost
// comes first, because variables of an outer one are inherited (torchrun within
// a Slurm job):
//
//   torchrun   RANK WORLD_SIZE LOCAL_RANK [LOCAL_WORLD_SIZE] [GROUP_RANK]
//   PyTorchJob RANK WORLD_SIZE PET_NNODES [PET_NPROC_PER_NODE] of Kubeflow,
//              which starts one rank on each host; counts as torchrun
//   Open MPI   OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
//              OMPI_COMM_WORLD_LOCAL_RANK [OMPI_COMM_WORLD_LOCAL_SIZE]
//   MPICH      PMI_RANK PMI_SIZE MPI_LOCALRANKID [MPI_LOCALNRANKS] (Hydra)
//   Slurm      SLURM_PROCID [SLURM_STEP_NUM_TASKS or] SLURM_NTASKS
//              SLURM_LOCALID [SLURM_NODEID]
//              [SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE]
//              [SLURMD_NODENAME]
//
// PMI_RANK without MPI_LOCALRANKID inside Slurm is srun's own PMI, and Slurm's
// variables are more complete. The script of a batch job is not a rank,
// although Slurm sets SLURM_PROCID=0 for it: without a variable of a step there
// is no launcher. The local rank is never guessed as rank % 8.
struct LauncherEnvironment {
  Launcher launcher = Launcher::kTorchrun;
  Rank rank;
  AxisSize world_size;
  int64_t local_rank = 0;                   // Among the ranks of this host.
  std::optional<int64_t> local_world_size;  // Ranks of this host.
  std::optional<int64_t> host_rank;         // This host's number in the job.
  std::optional<std::string> host_name;

  friend bool operator==(const LauncherEnvironment&,
                         const LauncherEnvironment&) = default;
};

// Returns the value of an environment variable, or nullopt if it is not set.
using EnvironmentLookup =
    std::function<std::optional<std::string>(std::string_view name)>;

// NotFound if no launcher's variables are set, or TESSERA_LAUNCHER is "none".
// InvalidArgument, naming the variables and their values, if a variable of the
// launcher is missing, is not a number, or contradicts another, and for the
// script of a batch job on several hosts, whose ranks srun has to start.
absl::StatusOr<LauncherEnvironment> ReadLauncherEnvironment(
    const EnvironmentLookup& lookup);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_
