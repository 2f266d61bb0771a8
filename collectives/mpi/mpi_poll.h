// Poll: asks MPI about requests until they are complete or something else ends
// the wait.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_POLL_H_
#define TESSERA_COLLECTIVES_MPI_MPI_POLL_H_

#include <mpi.h>

#include <span>

#include "absl/status/status.h"
#include "collectives/engine/backoff.h"
#include "collectives/mpi/mpi_runtime.h"

namespace tessera::collectives {

// OK once all are complete. `stop` is asked now and then, never at first; what
// it returns ends the wait unless it is OK. One question moves all of MPI's
// messages, so requests are asked about one after the other.
template <typename Stop>
absl::Status Poll(std::span<MPI_Request> requests, MPI_Status* statuses,
                  bool may_spin, const Stop& stop) {
  Backoff backoff(may_spin);
  for (size_t i = 0; i < requests.size();) {
    int done = 0;
    const int code =
        MPI_Test(&requests[i], &done,
                 statuses == nullptr ? MPI_STATUS_IGNORE : statuses + i);
    if (code != MPI_SUCCESS) return MpiStatus(code, "MPI_Test");
    if (done != 0) {
      ++i;
      continue;
    }
    if (backoff.Pause() == Backoff::Stage::kSpinning) continue;
    absl::Status stopped = stop();
    if (!stopped.ok()) return stopped;
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_POLL_H_
