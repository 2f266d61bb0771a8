// The MPI of this process: started where nobody has, ended by whom it was
// started.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_RUNTIME_H_
#define TESSERA_COLLECTIVES_MPI_MPI_RUNTIME_H_

#include "absl/status/status.h"

namespace tessera::collectives {

// Starts MPI with MPI_THREAD_MULTIPLE unless it runs already. What this starts
// ends when the process exits: MPI cannot start twice, so it does not end with
// the last engine. FailedPrecondition where MPI has ended, or gives less than
// MPI_THREAD_MULTIPLE: a communicator calls it from several threads.
absl::Status StartMpi();

// Started and not ended.
bool MpiRuns();

// From now on MPI is not ended at exit: a rank is gone or operations are under
// way that never end, and MPI_Finalize would wait for them for good. mpirun
// then reports the job as failed, which it is.
void AbandonMpi();

// OK, or the error for MPI's code `code` from `call`.
absl::Status MpiStatus(int code, const char* call);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_RUNTIME_H_
