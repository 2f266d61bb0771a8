// The collectives that reduce, by MPI's calls.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_REDUCING_H_
#define TESSERA_COLLECTIVES_MPI_MPI_REDUCING_H_

#include "absl/status/status.h"
#include "collectives/mpi/mpi_call.h"

namespace tessera::collectives {

absl::Status MpiAllReduce(MpiCall& call);
absl::Status MpiReduce(MpiCall& call);
absl::Status MpiReduceScatter(MpiCall& call);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_REDUCING_H_
