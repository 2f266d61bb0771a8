// Rendezvous: the point where the ranks of a job meet, computed from their
// launcher's environment variables. Opens no sockets.
//
// The first applicable row is used:
//   world size 1                   no rendezvous
//   TESSERA_INHERITED_SOCKETS      sockets connected by the launcher
//   MASTER_ADDR and a port         TCP to rank 0
//   all ranks on one host          an abstract unix socket named after the job
//
// The port is TESSERA_MASTER_PORT, or MASTER_PORT if that is not set. Under
// torchrun with TORCHELASTIC_USE_AGENT_STORE=True the agent itself listens on
// MASTER_PORT, so every rank derives another port from MASTER_PORT,
// TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT (AgentStorePort).
//
// The job's name is TESSERA_JOB_ID if set, otherwise PMIX_NAMESPACE or
// OMPI_MCA_ess_base_jobid (Open MPI), SLURM_JOB_ID and SLURM_STEP_ID (Slurm),
// TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT (torchrun). It
// distinguishes jobs of one user and attempts of one job.
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
  std::string port_source;    // kTcp: "MASTER_PORT=29500", for error messages.
  std::string bind_address;   // kTcp: TESSERA_BIND_ADDRESS, or empty.
  std::string abstract_name;  // kAbstractSocket.
  std::string job;            // kTcp, kAbstractSocket: the job's name.

  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// InvalidArgument if a variable is invalid or one of a pair is missing,
// FailedPrecondition if no rendezvous is configured; the message names what to
// set.
absl::StatusOr<Rendezvous> PlanRendezvous(
    const topology::EnvironmentLookup& lookup,
    const topology::LauncherEnvironment& environment);

// Returns a port from 20000 to 32767 (below Linux's ephemeral ports) other than
// `master_port`: a 64-bit FNV-1a hash of "MASTER_PORT/RUN_ID/RESTART_COUNT".
int AgentStorePort(int master_port, std::string_view run_id,
                   std::string_view restart_count);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_RENDEZVOUS_H_
