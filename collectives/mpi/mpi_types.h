// MpiTypes: MPI's types and operators for ours.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_
#define TESSERA_COLLECTIVES_MPI_MPI_TYPES_H_

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

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
