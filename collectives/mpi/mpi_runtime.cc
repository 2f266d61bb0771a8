#include "collectives/mpi/mpi_runtime.h"

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace tessera::collectives {
namespace {

// MPI is one per process and so is what is known of it.
std::mutex start_mutex;
std::atomic<bool> abandoned = false;

void EndMpi() {
  if (MpiRuns() && !abandoned) MPI_Finalize();
}

absl::Status CheckThreads(int level) {
  if (level >= MPI_THREAD_MULTIPLE) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "MPI was initialised with thread level ", level,
      "; a communicator needs MPI_THREAD_MULTIPLE (", MPI_THREAD_MULTIPLE,
      "): call MPI_Init_thread with it, or leave MPI to the engine"));
}

}  // namespace

bool MpiRuns() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

absl::Status StartMpi() {
  const std::lock_guard lock(start_mutex);
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) {
    return absl::FailedPreconditionError(
        "MPI_Finalize was called; MPI cannot start again in this process");
  }
  int level = 0;
  if (MpiRuns()) {
    MPI_Query_thread(&level);
    return CheckThreads(level);
  }
  const int code =
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (code != MPI_SUCCESS) return MpiStatus(code, "MPI_Init_thread");
  std::atexit(EndMpi);
  return CheckThreads(level);
}

void AbandonMpi() { abandoned = true; }

absl::Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, kind = MPI_ERR_UNKNOWN;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string message = absl::StrCat(
      call, ": ", std::string_view(text, static_cast<size_t>(length)));
  switch (kind) {
    case MPI_ERR_TRUNCATE:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; a rank sent more than another one expects"));
    case MPI_ERR_NO_MEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace tessera::collectives
