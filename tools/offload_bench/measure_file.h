// The measurements of the file tier and of prefetching from it.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {

struct FileBenchOptions {
  std::string directory;
  int64_t size = 0;             // Bytes of all blocks together.
  std::vector<int64_t> blocks;  // Bytes of a block: multiples of 4096.
  int64_t depth = 32;           // Requests in flight, for tier and device.
  double seconds = 0;           // Per measurement.
};

// Put, of blocks that exist, and Get of all blocks, started at once. The limit
// writes or reads one file of as many bytes in order, with requests of the same
// size and as many in flight, with O_DIRECT if the file system supports it; the
// note says so if not. ResourceExhausted, with nothing written, without enough
// disk space; DataLoss if other bytes are read back. Files have no name, so
// they disappear with the process.
absl::Status MeasureFileTier(const FileBenchOptions& options, const Sink& sink);

// The largest total size of its files at any time.
int64_t FileBenchBytes(const FileBenchOptions& options);

struct PrefetchBenchOptions {
  std::string directory;
  int64_t size = 0;             // Bytes of all blocks together, at most.
  std::vector<int64_t> blocks;  // Bytes of a block: multiples of 4096.
  int64_t depth = 32;           // Requests in flight, of the file tier.
  double seconds = 0;           // Per measurement.
};

// Steps that use up to 48 blocks of a file tier once each, in order, through
// room for a quarter of them, with a computation that takes as long as the load
// of a block. The limit is what the prefetcher itself reports: the bound that
// follows from the computations and the bandwidth, which is the best that the
// tier alone reached just before. GB/s are of the blocks used. The note says
// how much longer the same steps take without prefetching, in turns with the
// others, and what the tier alone reached afterwards if it changed.
absl::Status MeasurePrefetch(const PrefetchBenchOptions& options,
                             const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_FILE_H_
