// The rates of copies between page-locked host memory and a device.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_DEVICE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_DEVICE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {

struct CopiesOptions {
  int64_t size = 0;                  // Bytes of a pass, each way.
  std::vector<int64_t> blocks;       // Bytes of a copy; at most `size`.
  double seconds = 0;                // Per measurement.
  double pcie_bytes_per_second = 0;  // The limit, each way.
};

// Up, down, and both at the same time on two queues: a pass enqueues all blocks
// and waits for the last. The limit is the link's. Before, DataLoss if bytes
// differ after a copy up and down.
absl::Status MeasureCopies(Device& device, const CopiesOptions& options,
                           const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_DEVICE_H_
