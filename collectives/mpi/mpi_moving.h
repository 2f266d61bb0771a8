// The collectives that move data unchanged, by MPI's calls.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_MOVING_H_
#define TESSERA_COLLECTIVES_MPI_MPI_MOVING_H_

#include "absl/status/status.h"
#include "collectives/mpi/mpi_call.h"

namespace tessera::collectives {

absl::Status MpiBroadcast(MpiCall& call);
absl::Status MpiAllGather(MpiCall& call);
absl::Status MpiGather(MpiCall& call);
absl::Status MpiScatter(MpiCall& call);
absl::Status MpiAllToAll(MpiCall& call);
absl::Status MpiBarrier(MpiCall& call);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_MOVING_H_
