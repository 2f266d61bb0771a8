// The comm_bench program. Embedders link it, and the registrations of engines
// of their own (collectives/engine/engine_registry.h), to measure them beside
// the built-in ones:
//
//   int main(int argc, char** argv) {
//     return tessera::tools::CommBenchMain(argc, argv);
//   }
//
// For each number of ranks it starts itself once for every rank, by the
// launcher of //tools/launch, or by mpirun if an engine needs that. These
// processes write their progress, rows and errors to standard output, a JSON
// object in each line. Under another launcher, also on several hosts, the
// process is a rank itself.
#ifndef TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
#define TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_run.h"

namespace tessera::tools {

// Runs the tool with its command-line flags, or a rank if the process was
// started as one. Writes rows to standard output, progress and errors to
// standard error. Returns the exit code: 0, 1 for a failed run, 2 for invalid
// flags. Call it from main, before threads exist.
int CommBenchMain(int argc, char** argv);

// Measures everything that `options` ask for; `arguments` are those that gave
// the options. Call it on the main thread, like Launch. Calls `report` on
// another thread. Under another launcher the number of ranks is that launcher's
// and an error of a rank ends its process with exit code 1.
//
// Returns after the last case or the first error; no process that it started is
// left. Errors name engine and rank: Internal for a wrong result, Aborted if a
// process died or after a signal, NotFound without mpirun, or the rank's own
// error.
absl::Status RunBenchmark(const BenchOptions& options,
                          const std::vector<std::string>& arguments,
                          const Report& report);

// If this process was started by RunBenchmark, runs it and returns its exit
// code. Every program that calls RunBenchmark begins with it.
std::optional<int> RunWorker(int argc, char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
