// What the mpi engine can be told.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_OPTIONS_H_
#define TESSERA_COLLECTIVES_MPI_MPI_OPTIONS_H_

#include <mpi.h>

#include <limits>

#include "absl/time/time.h"

namespace tessera::collectives {

// The same on every rank.
struct MpiOptions {
  // The ranks of the engine's world. It is duplicated: the engine's messages
  // and yours do not meet.
  MPI_Comm communicator = MPI_COMM_WORLD;

  // Every message brings its signature, and every collective begins with an
  // exchange of 32 bytes a rank: calls that do not match are errors at once,
  // which show both sides. Otherwise MPI notices some (a message too long), and
  // others at the deadline or never.
  bool check_signatures = false;

  // Collectives by MPI's blocking calls: the algorithms that the MPI library is
  // tuned for, but deadlines, aborts and missing ranks are not noticed during
  // one. False: by its non-blocking calls, asked until the deadline.
  bool blocking = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(30);

  // Counts above it go in pieces. MPI's own limit is the default.
  int largest_count = std::numeric_limits<int>::max();
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_OPTIONS_H_
