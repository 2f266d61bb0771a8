// Tiers that hold blocks in memory, against memcpy.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_TIERS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_TIERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/stopwatch.h"

namespace tessera::offload_bench {

struct TiersOptions {
  int64_t size = 0;             // Bytes of all blocks together.
  std::vector<int64_t> blocks;  // Bytes of a block: multiples of 4096.
  double seconds = 0;           // Of each measurement.
  TimeKind time = TimeKind::kWall;
};

// Put, of blocks that exist, and Get of all blocks one after another: host,
// pinned, lossless_fast over host (bf16) and int8 over host (f32). The limit
// copies the same blocks, or for encodings reads and writes as many bytes as
// the codec does. DataLoss where a lossless tier gave back other bytes.
absl::Status MeasureTiers(const TiersOptions& options, const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_TIERS_H_
