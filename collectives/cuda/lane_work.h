// LaneWork: the work of one rank's lane for a collective on device memory.
//
//   const LaneWork work = PlanLane(operations, /*lane=*/r);
//   kernels.fold(stream, *work.fold);
//
// A lane reads inputs of all ranks and writes each byte of an output at most
// once. No two lanes write the same byte, and no lane reads a byte that another
// lane writes. So lanes may run in any order, and operations may be in place.
//
//   kind            lane r
//   all_reduce      folds its slice of all inputs, writes it to all outputs; up
//                   to 32 KiB lane 0 folds everything
//   reduce          the root's lane folds all inputs
//   reduce_scatter  folds its own block of all inputs
//   all_gather      copies the blocks of all inputs to its output
//   broadcast       copies the root's input
//   gather          the root's lane copies the blocks of all inputs
//   scatter         copies its block of the root's input
//   all_to_all      exchanges blocks with half of the other ranks
#ifndef TESSERA_COLLECTIVES_CUDA_LANE_WORK_H_
#define TESSERA_COLLECTIVES_CUDA_LANE_WORK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "collectives/cuda/kernel_arguments.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct LaneWork {
  std::optional<FoldJob> fold = {};
  std::vector<Move> moves = {};
};

// `operations` are the valid calls of the same collective, by rank; counts of
// an uneven all_to_all match (CheckPairs).
LaneWork PlanLane(std::span<const Operation> operations, int64_t lane);

// FailedPrecondition, with the ranks and the counts, if a rank of an uneven
// all_to_all sends another number of elements than its peer receives.
absl::Status CheckPairs(std::span<const Operation> operations);

// Convert the work to other addresses.
FoldJob MovedTo(const DeviceAddresses& at, FoldJob fold);
Moves MovedTo(const DeviceAddresses& at, Moves moves);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CUDA_LANE_WORK_H_
