// The measurements: the file tier, and copies between page-locked host memory
// and a device.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_H_

#include "absl/status/status.h"
#include "base/device/device.h"
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

// Up, down, and both at the same time on two queues: a pass moves `size` bytes
// each way, enqueues all blocks and waits for the last. The limit is the rate
// of `step.pcie_bytes_per_second` each way. Before, DataLoss if bytes differ
// after a copy up and down.
absl::Status MeasureCopies(Device& device, const OffloadBenchOptions& options,
                           const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_H_
