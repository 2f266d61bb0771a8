// MpiCall: what one collective's MPI calls have in common.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_CALL_H_
#define TESSERA_COLLECTIVES_MPI_MPI_CALL_H_

#include <mpi.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_runtime.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// A block that goes to or comes from `peer`.
template <typename Void>
struct BlockOf {
  int peer;
  BasicBuffer<Void> block;
};

struct MpiCall {
  MpiGroup& group;
  const Operation& operation;
  OperationContext& context;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  MPI_Comm comm() const { return group.comm(); }
  int root() const { return static_cast<int>(operation.root.value()); }
  bool is_root() const { return rank() == root(); }
  MPI_Datatype type() const { return group.types().TypeOf(DTypeOf(operation)); }
  MPI_Op op() const {
    return group.types().OpOf(operation.reduction.op, DTypeOf(operation));
  }
  int limit() const { return group.options().largest_count; }

  // `start(request)` begins the non-blocking form of an MPI call, `block()` is
  // its blocking form.
  template <typename Start, typename Block>
  absl::Status Do(const char* name, const Start& start, const Block& block) {
    if (group.options().blocking) return MpiStatus(block(), name);
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_RETURN_IF_ERROR(MpiStatus(start(&request), name));
    return Annotate(group.Await({&request, 1}, context), name);
  }

  // Sends and receives blocks of any size, each to and from its peer, and waits
  // for all of them. A block that goes to or comes from this rank is copied.
  absl::Status Exchange(std::span<const BlockOf<const void>> out,
                        std::span<const BlockOf<void>> in);

  // The input with the factor of a scaled sum applied: in `place` where that is
  // not null, else in scratch memory; the input itself where there is no
  // factor.
  absl::StatusOr<ConstBuffer> ScaledInput(void* place);
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_CALL_H_
