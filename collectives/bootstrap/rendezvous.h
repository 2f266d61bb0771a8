// Rendezvous: where the ranks of a job meet, by what their launcher set. Pure:
// reads variables and opens nothing.
//
// The first of these that there is:
//   a world of one                 meets nobody
//   TESSERA_INHERITED_SOCKETS      sockets that the launcher connected
//   MASTER_ADDR and a port         TCP to rank 0
//   all ranks on one host          an abstract unix socket named after the job
//
// The port is TESSERA_MASTER_PORT, else MASTER_PORT. Under torchrun with
// TORCHELASTIC_USE_AGENT_STORE=True the agent itself listens at MASTER_PORT, so
// the port is made of MASTER_PORT, TORCHELASTIC_RUN_ID and
// TORCHELASTIC_RESTART_COUNT (AgentStorePort), the same on every rank.
//
// The job's name is TESSERA_JOB_ID, else PMIX_NAMESPACE or
// OMPI_MCA_ess_base_jobid (Open MPI), SLURM_JOB_ID and SLURM_STEP_ID (Slurm),
// TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT (torchrun). It keeps jobs
// of one user, and attempts of one job, apart.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_RENDEZVOUS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_RENDEZVOUS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::collectives {

struct Rendezvous {
  enum class Kind { kAlone, kInheritedSockets, kTcp, kAbstractSocket };
  Kind kind = Kind::kAlone;

  std::string inherited;      // kInheritedSockets: the variable's value.
  std::string host;           // kTcp.
  int port = 0;               // kTcp: 1 to 65535.
  std::string port_source;    // kTcp: "MASTER_PORT=29500", for messages.
  std::string bind_address;   // kTcp: TESSERA_BIND_ADDRESS, or empty.
  std::string abstract_name;  // kAbstractSocket.
  std::string job;            // kTcp, kAbstractSocket: the job's name.

  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// InvalidArgument where a variable's value is wrong or one of a pair is
// missing, FailedPrecondition where nothing says where to meet: the message
// names what to set.
absl::StatusOr<Rendezvous> PlanRendezvous(
    const topology::EnvironmentLookup& lookup,
    const topology::LauncherEnvironment& environment);

// From 20000 to 32767 (below the ports that Linux gives out by itself), never
// `master_port`: a 64-bit FNV-1a hash of "MASTER_PORT/RUN_ID/RESTART_COUNT".
int AgentStorePort(int master_port, std::string_view run_id,
                   std::string_view restart_count);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_RENDEZVOUS_H_
