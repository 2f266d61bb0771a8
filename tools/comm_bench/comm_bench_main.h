// CommBenchMain: the comm_bench program. Embedders link it, and the
// registrations of engines of their own (collectives/engine/engine_registry.h),
// to measure them beside the built-in ones:
//
//   int main(int argc, char** argv) {
//     return tessera::tools::CommBenchMain(argc, argv);
//   }
#ifndef TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
#define TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_

namespace tessera::tools {

// Runs the tool with its command-line flags, or a worker if the process was
// started as one. Writes rows to standard output, progress and errors to
// standard error. Returns the exit code: 0, 1 for a failed run, 2 for invalid
// flags. The tool starts this program again as its workers, so call it from
// main, before threads exist.
int CommBenchMain(int argc, char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
