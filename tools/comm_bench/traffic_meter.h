// MeasureTraffic: how fast this machine moves the minimum bytes of a collective
// with as many threads, the bound for engines.
//
//   TESSERA_ASSIGN_OR_RETURN(double seconds,
//                            MeasureTraffic(4, OpKind::kAllReduce, 1 << 20));
#ifndef TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
#define TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/os/processors.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/copy.h"

namespace tessera::tools {

// Every rank's buffers, each with room for a whole message of f32.
struct TrafficBuffers {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// Moves the bytes of rank i of n for a message of S `bytes`, with the same
// placement as an engine on registered buffers:
//
//   all_reduce                reads part i of n inputs, writes it to n outputs:
//                             2 S
//   reduce_scatter, reduce    reads part i of n inputs, writes it once:
//                             S + S/n
//   all_gather, all_to_all    reads a block of each input, writes each: 2 S
//   broadcast                 reads the root's input, writes its output: 2 S
//   gather, scatter           moves its block: 2 S/n
void MoveTraffic(const TrafficBuffers& buffers, int64_t rank,
                 collectives::OpKind kind, int64_t bytes,
                 collectives::StoreMode stores);

// Seconds in which `world` threads, each bound to its share of `processors`,
// move these bytes: the median over iterations, with ordinary or streaming
// stores, whichever is faster.
//
// The timed part has no synchronisation and measures each thread's own CPU
// time: the bound is the longest of these or, with more threads than
// processors, their sum divided by the processors. As in the benchmark, buffers
// are rewritten before and short moves are repeated. ResourceExhausted if the
// buffers need more than half of the free memory; InvalidArgument for a barrier
// and without bytes.
absl::StatusOr<double> MeasureTraffic(
    int64_t world, collectives::OpKind kind, int64_t bytes,
    const std::vector<int>& processors = AllowedProcessors());

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
