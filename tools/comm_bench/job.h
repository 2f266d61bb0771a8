// RunBenchmark: starts the processes of the benchmark and collects their
// results; RunWorker: such a process, which is the same binary.
//
//   int main(int argc, char** argv) {
//     if (const auto code = RunWorker(argc, argv)) return *code;
//     ...
//     TESSERA_RETURN_IF_ERROR(RunBenchmark(options, arguments, events));
//   }
//
// For each number of ranks the processes are started once, by the launcher of
// //tools/launch, or by its mpirun if an engine needs that. They write their
// progress, rows and errors to standard output, a JSON object in each line.
// Under another launcher, also on several hosts, this process is a rank itself.
#ifndef TESSERA_TOOLS_COMM_BENCH_JOB_H_
#define TESSERA_TOOLS_COMM_BENCH_JOB_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_run.h"

namespace tessera::tools {

// Measures everything that `options` ask for; `arguments` are those that gave
// the options. Call it on the main thread, like Launch. Events are called on
// another thread. Under another launcher the number of ranks is that launcher's
// and an error of a rank ends its process with exit code 1.
//
// Returns after the last case or the first error; no process that it started is
// left. Errors name engine and rank: Internal for a wrong result, Aborted if a
// process died or after a signal, NotFound without mpirun, or the rank's own
// error.
absl::Status RunBenchmark(const BenchOptions& options,
                          const std::vector<std::string>& arguments,
                          const BenchEvents& events);

// False if another launcher started this process as a rank other than 0.
bool PrintsRows();

// If this process was started by RunBenchmark, runs it and returns its exit
// code. Every program that calls RunBenchmark begins with it.
std::optional<int> RunWorker(int argc, char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_JOB_H_
