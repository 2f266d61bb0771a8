// LauncherEnvironment: what the program that started this process says about
// it.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       LauncherEnvironment here,
//       ReadLauncherEnvironment([](std::string_view name) {
//         const char* value = std::getenv(std::string(name).c_str());
//         return value ? std::optional<std::string>(value) : std::nullopt;
//       }));
//   TESSERA_ASSIGN_OR_RETURN(DeviceIndex device, DeviceOf(here, cluster));
//
// The launchers, the innermost first; the first whose variables are set is
// believed, because an outer one's are inherited (torchrun within a Slurm job):
//
//   torchrun   RANK WORLD_SIZE LOCAL_RANK [LOCAL_WORLD_SIZE] [GROUP_RANK]
//   Open MPI   OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
//              OMPI_COMM_WORLD_LOCAL_RANK [OMPI_COMM_WORLD_LOCAL_SIZE]
//   MPICH      PMI_RANK PMI_SIZE MPI_LOCALRANKID [MPI_LOCALNRANKS] (Hydra)
//   Slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID [SLURM_NODEID]
//              [SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE]
//              [SLURMD_NODENAME]
//
// PMI_RANK without MPI_LOCALRANKID inside Slurm is srun's own PMI, and Slurm's
// variables tell more. A rank's place is never guessed as rank % 8.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_
#define TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"
#include "topology/rank.h"

namespace tessera::topology {

enum class Launcher { kTorchrun, kOpenMpi, kMpich, kSlurm };

// "torchrun", "Open MPI", "MPICH", "Slurm".
std::string_view LauncherName(Launcher launcher);

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

// The value of an environment variable, or nothing where it is not set.
using EnvironmentLookup =
    std::function<std::optional<std::string>(std::string_view name)>;

// NotFound where no launcher's variables are set. InvalidArgument where one of
// a launcher's is missing, is no number, or contradicts another: the message
// names the variables and their values.
absl::StatusOr<LauncherEnvironment> ReadLauncherEnvironment(
    const EnvironmentLookup& lookup);

// The device of a rank where nothing but the cluster is known: ranks fill the
// hosts in order, each with as many as it has devices. OutOfRange where the
// cluster has fewer devices.
absl::StatusOr<DevicePlace> PlaceOfRank(const Cluster& cluster, Rank rank);

// The device of this process: number `local_rank` of its host. The host is the
// one of that name where the cluster has it, else host number `host_rank`, else
// the one that PlaceOfRank says. InvalidArgument where the host has no such
// device or, in the last case, PlaceOfRank says another local rank.
absl::StatusOr<DeviceIndex> DeviceOf(const LauncherEnvironment& environment,
                                     const Cluster& cluster);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_LAUNCHER_ENVIRONMENT_H_
