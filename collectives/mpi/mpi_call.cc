#include "collectives/mpi/mpi_call.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/engine/reduction_steps.h"
#include "collectives/mpi/pieces.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {

absl::StatusOr<ConstBuffer> MpiCall::ScaledInput(void* place) {
  const ConstBuffer input = operation.input;
  if (!ScalesInput(operation.reduction)) return input;
  if (place == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> scratch,
                             group.AllocateScratch(input.bytes()));
    place = scratch.data();
  }
  const Buffer scaled(place, input.count, input.dtype);
  ScaleInto(operation.reduction, input, scaled);
  return ConstBuffer(scaled);
}

namespace {

// The requests of an exchange, and what its receives should bring.
struct Posted {
  std::vector<MPI_Request> requests;
  std::vector<int> expected;  // Of the receives, which come first.
  std::vector<int> peers;
};

absl::Status CheckSizes(const Posted& posted,
                        const std::vector<MPI_Status>& statuses) {
  for (size_t i = 0; i < posted.expected.size(); ++i) {
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (bytes == posted.expected[i]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", posted.peers[i], " sent ", bytes, " bytes where ",
        posted.expected[i], " are expected: the ranks' counts differ"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MpiCall::Exchange(std::span<const BlockOf<const void>> out,
                               std::span<const BlockOf<void>> in) {
  Posted posted;
  ConstBuffer own_out;
  Buffer own_in;
  for (const BlockOf<void>& from : in) {
    if (from.peer == rank()) own_in = from.block;
    if (from.peer == rank() || from.block.count == 0) continue;
    for (Piece piece : Pieces(from.block.bytes(), limit())) {
      posted.expected.push_back(piece.length);
      posted.peers.push_back(from.peer);
      MPI_Request& request = posted.requests.emplace_back(MPI_REQUEST_NULL);
      TESSERA_RETURN_IF_ERROR(
          MpiStatus(MPI_Irecv(from.block.Bytes() + piece.first, piece.length,
                              MPI_BYTE, from.peer, kBlockTag, comm(), &request),
                    "MPI_Irecv"));
    }
  }
  for (const BlockOf<const void>& to : out) {
    if (to.peer == rank()) own_out = to.block;
    if (to.peer == rank() || to.block.count == 0) continue;
    for (Piece piece : Pieces(to.block.bytes(), limit())) {
      MPI_Request& request = posted.requests.emplace_back(MPI_REQUEST_NULL);
      TESSERA_RETURN_IF_ERROR(
          MpiStatus(MPI_Isend(to.block.Bytes() + piece.first, piece.length,
                              MPI_BYTE, to.peer, kBlockTag, comm(), &request),
                    "MPI_Isend"));
    }
  }
  if (own_in.data != own_out.data) {
    CopyBytes(own_in.data, own_out.data, own_in.bytes());
  }
  std::vector<MPI_Status> statuses(posted.requests.size());
  TESSERA_RETURN_IF_ERROR(
      group.Await(posted.requests, context, statuses.data()));
  return CheckSizes(posted, statuses);
}

}  // namespace tessera::collectives
