// JoinJob: finds the other ranks of this process's job, whatever started it.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(lookup, {.on_refusal =
//   LogLine})); job.rank; job.world_size; *job.store ...
//
// Reads the variables of torchrun, mpirun (Open MPI, MPICH) or Slurm
// (topology/discovery/launcher_environment.h); rendezvous/rendezvous.h
// says where the ranks meet, secret/job_secret.h which secret they prove to
// each other.
//
// Who can connect: with MASTER_ADDR=127.0.0.1 (or localhost) rank 0 binds to
// loopback. Any other MASTER_ADDR tells it to bind to that address, so that
// other hosts reach it; TESSERA_BIND_ADDRESS names another one ("0.0.0.0":
// all), where MASTER_ADDR is an address that only the others know rank 0 by.
// Off loopback the secret must be set: the user's key file does not do.
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
  // How long the ranks wait for each other.
  absl::Duration timeout = absl::Minutes(5);
  // Rank 0: one line for each stranger that it refused, at a bounded rate.
  // Called by a thread of the store.
  std::function<void(std::string line)> on_refusal = nullptr;
};

struct Job {
  topology::LauncherEnvironment environment;
  Rank rank;
  AxisSize world_size;
  std::unique_ptr<Store> store;
};

// Returns when every rank of the job has come. NotFound where no launcher's
// variables are set; InvalidArgument or FailedPrecondition where they are wrong
// or say too little, naming what to set; AlreadyExists where rank 0 finds its
// port taken; PermissionDenied where rank 0 has another secret;
// DeadlineExceeded or Unavailable naming the ranks that did not come or died.
absl::StatusOr<Job> JoinJob(const topology::EnvironmentLookup& lookup,
                            const JoinOptions& options = {});

// The variables of this process.
topology::EnvironmentLookup ProcessEnvironment();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_JOIN_JOB_H_
