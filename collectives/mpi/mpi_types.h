// MPI's initialisation and errors, and MpiTypes, its types and operators.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_
#define TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

// Initialises MPI with MPI_THREAD_MULTIPLE if it is not initialised. In this
// case MPI is finalised when the process exits, because it cannot be
// initialised twice. FailedPrecondition if MPI was finalised, or does not
// provide MPI_THREAD_MULTIPLE, which a communicator needs because it calls MPI
// from several threads.
absl::Status StartMpi();

// True if MPI is initialised and not finalised.
bool MpiRuns();

// Disables MPI_Finalize at exit, because a rank is gone or operations never
// complete, for which MPI_Finalize would wait forever. mpirun then reports the
// job as failed.
void AbandonMpi();

// Converts MPI's error code from `call` to a status.
absl::Status MpiStatus(int code, const char* call);

// The MPI types and operators for DType and ReduceOp. Created once and shared
// by all groups of a world. Thread-safe.
class MpiTypes {
 public:
  // Requires that MPI is initialised.
  static absl::StatusOr<std::shared_ptr<const MpiTypes>> Create();
  ~MpiTypes();

  MpiTypes(const MpiTypes&) = delete;
  MpiTypes& operator=(const MpiTypes&) = delete;

  // MPI's own type; for f16 and bf16, which MPI lacks, a type of two bytes; for
  // fp8 bytes.
  MPI_Datatype TypeOf(DType dtype) const {
    return types_[static_cast<size_t>(dtype)];
  }

  // MPI's own operator if its semantics match. Otherwise a user-defined
  // operator: for f16 and bf16 (reduced in f32), and for the minimum and
  // maximum of floating-point numbers, because MPI does not define them for
  // NaN. The operator of averages and scaled sums is the sum. `dtype` must be
  // reducible.
  MPI_Op OpOf(ReduceOp op, DType dtype) const;

 private:
  MpiTypes() { ops_.fill(MPI_OP_NULL); }

  absl::Status CreateTypes();
  absl::Status CreateOps();

  std::array<MPI_Datatype, kAllDTypes.size()> types_{};
  // User-defined operators by operation (sum, product, min, max) and type.
  std::array<MPI_Op, 4 * kAllDTypes.size()> ops_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_
