// RunBenchmark: starts the jobs and measures every case.
//
// The jobs of all engines are started once for each number of ranks and stay;
// idle workers wait in poll(2). Within a case the variants take turns in short
// rounds, forwards and backwards, so that what disturbs the machine hits all of
// them alike.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/row.h"
#include "tools/launch/signals.h"

namespace tessera::tools {

struct BenchEvents {
  // The rows of a finished case: one operation, type, size, number of ranks.
  std::function<void(const std::vector<Row>&)> on_case;
  // What is being measured now.
  std::function<void(const std::string&)> on_progress;
};

// Returns when all is measured, or at the first error, with every process that
// it started gone. Errors name engine and rank: Internal for a wrong result,
// Cancelled after a signal. The calling process has one thread.
absl::Status RunBenchmark(const BenchOptions& options,
                          const EngineCatalogue& catalogue,
                          const SignalWatch* signals,
                          const BenchEvents& events);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
