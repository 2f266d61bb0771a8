// One process's part of a TrafficMeter's work.
#ifndef TESSERA_TOOLS_COMM_BENCH_TRAFFIC_KERNEL_H_
#define TESSERA_TOOLS_COMM_BENCH_TRAFFIC_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/operation/operation.h"

namespace tessera::tools {

// Every rank's buffers, each with room for a whole message of f32.
struct TrafficBuffers {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// Moves the bytes of `rank` for a message of `bytes` (see traffic_meter.h).
// `streamed`: with stores that pass the caches by.
void MoveTraffic(const TrafficBuffers& buffers, int64_t rank,
                 collectives::OpKind kind, int64_t bytes, bool streamed);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TRAFFIC_KERNEL_H_
