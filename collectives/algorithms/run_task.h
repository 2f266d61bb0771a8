// RunTask: what run_algorithm.cc, run_reducing.cc and run_moving.cc share.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RUN_TASK_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RUN_TASK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/algorithm_options.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct RunTask {
  Algorithm algorithm;
  const Operation& operation;
  const AlgorithmOptions& options;
  const Hierarchy& hierarchy;
  Party party;
  int64_t element;  // Bytes of one.
  int64_t chunk;    // Elements.

  int64_t ranks() const { return party.size(); }
  bool IsRoot() const { return operation.root == party.RankOf(party.rank()); }
  ConstVectorView input() const { return {operation.input.Bytes(), element}; }
  VectorView output() const { return {operation.output.Bytes(), element}; }
};

// For what no case of a switch covers.
absl::Status NoSuchForm(Algorithm algorithm, OpKind kind, bool uneven);

// run_reducing.cc
absl::Status RunAllReduce(RunTask& task);
absl::Status RunReduce(RunTask& task);
absl::Status RunReduceScatter(RunTask& task);

// run_moving.cc
absl::Status RunAllGather(RunTask& task);
absl::Status RunBroadcast(RunTask& task);
absl::Status RunGather(RunTask& task);
absl::Status RunScatter(RunTask& task);
absl::Status RunAllToAll(RunTask& task);
absl::Status RunBarrier(RunTask& task);

// All slices of `all`, of which each rank has its own there, to all ranks by
// the algorithm's own way.
absl::Status SpreadSlices(RunTask& task, const Blocks& slices, VectorView all);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RUN_TASK_H_
