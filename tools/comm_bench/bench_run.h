// RunBenchmark: starts the jobs and measures every case.
//
// The jobs of all engines are started once for each number of ranks; idle
// workers wait in poll(2). Within a case the variants take turns in short
// rounds, forwards and backwards, so that disturbances of the machine affect
// all alike.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/operation/operation.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/report.h"
#include "tools/comm_bench/task.h"
#include "tools/launch/signals.h"

namespace tessera::tools {

// The variants of options.algorithms that an engine has for `op`, in that
// order. "all" is the engine's own, if it has one, then every algorithm. With
// options.reproducible each reduction has a second, reproducible variant.
std::vector<Variant> VariantsFor(const BenchOptions& options,
                                 const Capabilities& engine,
                                 collectives::OpKind op);

// The operations of a batch if one takes `seconds`: enough for 40 us, at least
// 1 and at most 64.
int64_t BatchFor(double seconds);

// The median over iterations of the slowest rank's time.
double MedianOfSlowest(const std::vector<std::vector<double>>& by_rank);

struct BenchEvents {
  // The rows of a finished case: one operation, type, size, number of ranks.
  std::function<void(const std::vector<Row>&)> on_case;
  // The current measurement, for a progress display.
  std::function<void(const std::string&)> on_progress;
};

// Returns after the last case or the first error; no process that it started is
// left. Errors name engine and rank: Internal for a wrong result, Cancelled
// after a signal.
absl::Status RunBenchmark(const BenchOptions& options,
                          const SignalWatch* signals,
                          const BenchEvents& events);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
