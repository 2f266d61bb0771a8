// What a machine is, as far as the costs of communication depend on it.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/adaptive/cost_table.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// "AMD EPYC 9654; 2 cpus; caches 32K 1024K 32768K; host a": the processor's
// name, the CPUs that this process may run on, the sizes of the data caches and
// the host's name. At most 512 bytes; "?" for what the system does not say.
std::string DescribeHardware();

// The value of the first "model name" of /proc/cpuinfo's text, shortened; "?"
// where there is none.
std::string ModelNameIn(std::string_view cpuinfo);

// Trial: one way of one operation at one size, timed in turns with others.

struct Trial {
  OpKind kind = OpKind::kBarrier;
  Algorithm algorithm = Algorithm::kEngine;
  int64_t bytes = 0;   // Of the whole message.
  int64_t batch = 1;   // Operations in a turn.
  double seconds = 0;  // The result.
};

// The bytes of the whole message nearest to `bytes` that `ranks` ranks can
// part, at least an element for each; 0 for a barrier. Elements are f32.
int64_t TrialBytes(OpKind kind, int64_t bytes, int64_t ranks);

// Memory for the largest trial.
class TrialBuffers {
 public:
  TrialBuffers(int64_t max_bytes, int64_t ranks)
      : input_(static_cast<size_t>(max_bytes / 4 + ranks)),
        output_(input_.size()) {}

  Operation OperationOf(OpKind kind, int64_t bytes,
                        const Communicator& communicator);

 private:
  std::vector<float> input_;
  std::vector<float> output_;
};

// Runs every trial once untimed, then `turns` times in turns; sets the median
// over the turns of the slowest rank's seconds of one operation. A collective;
// results are the same on every rank. Trials are of algorithms that the group
// has.
absl::Status RunTrials(Communicator& communicator, TrialBuffers& buffers,
                       int64_t turns, std::span<Trial> trials);

// The parameters of the cost formulas, measured.

// A collective; the same on every rank. Without point-to-point messages both
// lines are those of a copy by the processor. Takes some milliseconds.
absl::StatusOr<FormulaCosts> MeasureLinks(Communicator& communicator);

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
