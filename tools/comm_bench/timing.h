// How one rank times an operation.
//
// Before each iteration the buffers are rewritten and a barrier of the engine
// under test aligns the ranks; neither is timed. An iteration is a batch of
// operations back to back; its time, on this rank's CLOCK_MONOTONIC, is divided
// by the batch. The result of the first iteration and of the last is checked.
#ifndef TESSERA_TOOLS_COMM_BENCH_TIMING_H_
#define TESSERA_TOOLS_COMM_BENCH_TIMING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {

// Seconds of one operation for each of task.iterations. `operands` have
// task.batch slots, or one where that serves them all.
absl::StatusOr<std::vector<double>> TimeOperation(
    collectives::Communicator& communicator,
    const collectives::CallOptions& call, const Task& task, Operands& operands);

// For each iteration three times: of a computation that takes about as long as
// the operation, of the operation, and of both with the operation started
// first.
absl::StatusOr<std::vector<double>> TimeOverlap(
    collectives::Communicator& communicator,
    const collectives::CallOptions& call, const Task& task, Operands& operands);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TIMING_H_
