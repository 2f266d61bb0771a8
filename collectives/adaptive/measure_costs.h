// MeasureCosts: the costs of a group, measured on the spot.
//
//   TESSERA_ASSIGN_OR_RETURN(CostTable table, MeasureCosts(communicator, {}));
//
// First the parameters of the formulas: messages of several sizes to and fro
// between rank 0 and a near and a far rank, and a local reduction. Then every
// algorithm that the group has of every operation, at sizes that grow by a
// factor of four; what the costs so far predict to be far behind is left out,
// and once the budget is spent all but the contenders. Algorithms take turns,
// the slowest rank counts, and the median of the turns.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/adaptive/cost_table.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

struct MeasureOptions {
  // About how long it takes; twice that where large messages are slow.
  absl::Duration budget = absl::Milliseconds(900);
  // Of the largest message, and of the two buffers that each rank needs.
  int64_t max_bytes = int64_t{16} << 20;
};

// The key of a group's costs; hardware is this rank's.
CostKey CostKeyOf(const Communicator& communicator);

// A collective; all ranks give the same options and get the same table, to the
// last bit, with rank 0's hardware as its key. The communicator's chooser is
// the default one (strategy all_reduce), and nothing else runs on it meanwhile.
// An error has broken the group.
absl::StatusOr<CostTable> MeasureCosts(Communicator& communicator,
                                       const MeasureOptions& options);

// `text` of rank 0, on every rank. At most 2^30 bytes.
absl::StatusOr<std::string> BroadcastText(Communicator& communicator,
                                          std::string text);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_
