// TrafficMeter: measures how fast this machine moves the minimum bytes of a
// collective with as many threads: the bound for engines.
#ifndef TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
#define TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/copy.h"

namespace tessera::tools {

// Every rank's buffers, each with room for a whole message of f32.
struct TrafficBuffers {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// Moves the bytes of `rank` for a message of `bytes`, as in the table below.
void MoveTraffic(const TrafficBuffers& buffers, int64_t rank,
                 collectives::OpKind kind, int64_t bytes,
                 collectives::StoreMode stores);

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto meter, TrafficMeter::Create(4, 64 << 20, AllowedProcessors()));
//   TESSERA_ASSIGN_OR_RETURN(double seconds,
//                            meter.Measure(OpKind::kAllReduce, 1 << 20));
//
// The threads share their buffers. The work of rank i of n for a message of S
// bytes, with the same placement as an engine on registered buffers:
//
//   all_reduce                reads part i of n inputs, writes it to n outputs:
//                             2 S
//   reduce_scatter, reduce    reads part i of n inputs, writes it once:
//                             S + S/n
//   all_gather, all_to_all    reads a block of each input, writes each: 2 S
//   broadcast                 reads the root's input, writes its output: 2 S
//   gather, scatter           moves its block: 2 S/n
//
// The timed part has no synchronisation and measures each thread's own CPU
// time: the bound is the longest of these or, with more threads than
// processors, their sum divided by the processors. As in the benchmark, buffers
// are rewritten before and short moves are repeated.
class TrafficMeter {
 public:
  // Each thread is bound to its share of `processors`. ResourceExhausted if
  // messages of `max_bytes` need more than half of the free memory.
  static absl::StatusOr<TrafficMeter> Create(int64_t world, int64_t max_bytes,
                                             std::vector<int> processors);

  // Seconds, the median over iterations, with ordinary or streaming stores,
  // whichever is faster. `bytes` is the whole message, at most max_bytes. The
  // threads have ended when it returns.
  absl::StatusOr<double> Measure(collectives::OpKind kind, int64_t bytes);

 private:
  TrafficMeter(int64_t max_bytes, std::vector<int> processors)
      : max_bytes_(max_bytes), processors_(std::move(processors)) {}

  double MeasureWith(collectives::OpKind kind, int64_t bytes,
                     collectives::StoreMode stores) const;

  int64_t max_bytes_;
  std::vector<int> processors_;
  Buffer memory_;
  TrafficBuffers buffers_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
