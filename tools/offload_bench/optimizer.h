// Steps of the CPU optimizers against a triad.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_OPTIMIZER_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/stopwatch.h"

namespace tessera::offload_bench {

struct OptimizerBenchOptions {
  int64_t size = 0;  // Bytes of f32 parameters, a multiple of 4.
  std::vector<int64_t> threads;
  double seconds = 0;  // Of each measurement.
  TimeKind time = TimeKind::kWall;
};

// AdamW, and SGD with momentum, of f32 parameters and gradients: moments in
// f32, bf16 and 8 bits, without a copy and with one in bf16. GB/s are of all
// bytes that a step must move (parameter, moments, gradient read; parameter,
// moments, copy written); the limit is the better of the triad's two kinds of
// stores, by as many threads over as much memory.
absl::Status MeasureOptimizers(const OptimizerBenchOptions& options,
                               const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_OPTIMIZER_H_
