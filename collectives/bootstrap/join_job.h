// JoinJob: connects this process with the other ranks of its job, for any
// launcher.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job,
//                            JoinJob(lookup, {.on_refusal = LogLine}));
//   ... job.rank, job.world_size, *job.store ...
//
// Reads the environment variables of torchrun, mpirun (Open MPI, MPICH) or
// Slurm (see topology::LauncherEnvironment). rendezvous.h describes where the
// ranks meet, channel/job_secret.h which secret they use to authenticate each
// other.
//
// Network exposure: rank 0 binds to MASTER_ADDR. With 127.0.0.1 or localhost
// only this host can connect. TESSERA_BIND_ADDRESS overrides the address
// ("0.0.0.0": all interfaces), for example if MASTER_ADDR is rank 0's address
// behind address translation. If rank 0's host gives its own name a loopback
// address and the job has other hosts, it binds to all interfaces. Unless rank
// 0 binds to loopback, a secret must be set; the user's key file is not enough.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_JOIN_JOB_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_JOIN_JOB_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "topology/discovery/launcher_environment.h"
#include "topology/rank.h"

namespace tessera::collectives {

using topology::AxisSize;

struct JoinOptions {
  // The longest time to wait for the other ranks.
  absl::Duration timeout = absl::Minutes(5);
  // Rank 0: receives one line per rejected connection, at a bounded rate.
  // Called by a thread of the store.
  std::function<void(std::string line)> on_refusal = nullptr;
};

struct Job {
  topology::LauncherEnvironment environment;
  Rank rank;
  AxisSize world_size;
  std::unique_ptr<Store> store;
};

// Waits until every rank of the job has joined. NotFound if no launcher's
// variables are set; InvalidArgument or FailedPrecondition if they are wrong or
// incomplete, naming what to set; AlreadyExists if rank 0's port is in use;
// PermissionDenied if rank 0 has another secret; DeadlineExceeded or
// Unavailable naming the ranks that did not join or died.
absl::StatusOr<Job> JoinJob(const topology::EnvironmentLookup& lookup,
                            const JoinOptions& options = {});

// Looks up the environment variables of this process.
topology::EnvironmentLookup ProcessEnvironment();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_JOIN_JOB_H_
