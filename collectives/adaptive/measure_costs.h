// MeasureCosts: measures the communication costs of a group.
//
//   TESSERA_ASSIGN_OR_RETURN(CostTable table, MeasureCosts(communicator, {}));
//
// First it measures the parameters of the formulas: ping-pong messages of
// several sizes between rank 0 and a near and a far rank, and a local
// reduction. Then it measures every available algorithm of every operation, at
// sizes that grow by a factor of four. It omits algorithms that are predicted
// to be far slower, and once the budget is spent it measures only the
// contenders. Algorithms alternate; the result is the median over the rounds of
// the slowest rank's time. Costs are measured on the host (Communicator::host),
// so measure them before creating a communicator on a device, which inherits
// the chooser.
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
// name, the number of usable CPUs, the sizes of the data caches and the host
// name. At most 512 bytes; "?" for unknown parts.
std::string DescribeHardware();

// The first "model name" in the text of /proc/cpuinfo, shortened, or "?".
std::string ModelNameIn(std::string_view cpuinfo);

// A measurement of one algorithm of one operation at one size.
struct Trial {
  OpKind kind = OpKind::kBarrier;
  Algorithm algorithm = Algorithm::kEngine;
  int64_t bytes = 0;   // Size of the whole message.
  int64_t batch = 1;   // Operations per round.
  double seconds = 0;  // The result.
};

// The message size nearest to `bytes` that splits into equal blocks for `ranks`
// ranks, at least one f32 element each; 0 for a barrier.
int64_t TrialBytes(OpKind kind, int64_t bytes, int64_t ranks);

// Buffers for the largest trial.
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

// Runs every trial once untimed, then `turns` rounds of all trials. Sets
// Trial::seconds to the median over the rounds of the slowest rank's time of
// one operation. A collective; all ranks get the same results. The group must
// support the trials' algorithms.
absl::Status RunTrials(Communicator& communicator, TrialBuffers& buffers,
                       int64_t turns, std::span<Trial> trials);

// Measures the parameters of the cost formulas. A collective; all ranks get the
// same result. Without point-to-point messages both lines describe a local
// copy. Takes some milliseconds.
absl::StatusOr<FormulaCosts> MeasureLinks(Communicator& communicator);

struct MeasureOptions {
  // Approximate duration; up to twice as long if large messages are slow.
  absl::Duration budget = absl::Milliseconds(900);
  // Size of the largest message, and of each of the two buffers per rank.
  int64_t max_bytes = int64_t{16} << 20;
};

// The key of a group's costs, with this rank's hardware.
CostKey CostKeyOf(const Communicator& communicator);

// A collective; all ranks give the same options and get identical tables with
// rank 0's hardware in the key. Requires the default chooser (strategy
// all_reduce) and no other operations on the communicator meanwhile. An error
// breaks the group.
absl::StatusOr<CostTable> MeasureCosts(Communicator& communicator,
                                       const MeasureOptions& options);

// Returns rank 0's `text` on every rank. At most 2^30 bytes.
absl::StatusOr<std::string> BroadcastText(Communicator& communicator,
                                          std::string text);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_COSTS_H_
