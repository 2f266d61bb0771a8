// The measurement of the file tier.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_

#include "absl/status/status.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {

// Put, of blocks that exist, and Get of all blocks, started at once. The limit
// writes or reads one file of as many bytes in order, with requests of the same
// size and as many in flight, with O_DIRECT if the file system supports it; the
// note says so if not. ResourceExhausted, with nothing written, without enough
// disk space; DataLoss if other bytes are read back. Files have no name, so
// they disappear with the process.
absl::Status MeasureFileTier(const OffloadBenchOptions& options,
                             const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_
