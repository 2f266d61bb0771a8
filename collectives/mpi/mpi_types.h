// The MPI of this process: started where nobody has, ended by whom it was
// started.
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

// MpiTypes: MPI's types and operators for ours.

// Made once and shared by all groups of a world. Thread-safe.
class MpiTypes {
 public:
  // MPI runs.
  static absl::StatusOr<std::shared_ptr<const MpiTypes>> Create();
  ~MpiTypes();

  MpiTypes(const MpiTypes&) = delete;
  MpiTypes& operator=(const MpiTypes&) = delete;

  // MPI's own type; for f16 and bf16, which it does not have, one of two bytes
  // each; for fp8 bytes.
  MPI_Datatype TypeOf(DType dtype) const {
    return types_[static_cast<size_t>(dtype)];
  }

  // MPI's own operator where it means what ours means. Ours for f16 and bf16
  // (combined in f32), and for the minimum and maximum of floating-point
  // numbers, where MPI leaves open what a NaN gives. Averages and scaled sums
  // add. The type is reducible.
  MPI_Op OpOf(ReduceOp op, DType dtype) const;

 private:
  MpiTypes() { ops_.fill(MPI_OP_NULL); }

  absl::Status CreateTypes();
  absl::Status CreateOps();

  std::array<MPI_Datatype, kAllDTypes.size()> types_{};
  // Ours, by fold (sum, product, min, max) and type.
  std::array<MPI_Op, 4 * kAllDTypes.size()> ops_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_
