// CommBenchMain: the comm_bench program for a catalogue of engines. Embedders
// link it to measure engines of their own beside the built-in ones:
//
//   int main(int argc, char** argv) {
//     using namespace tessera::tools;
//     EngineCatalogue engines = BuiltInEngines();
//     engines.AddProcesses("mine", LaunchMethod::kProcesses, MakeMine);
//     return CommBenchMain(argc, argv, engines);
//   }
#ifndef TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
#define TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_

#include "tools/comm_bench/engine_catalogue.h"

namespace tessera::tools {

// Runs the tool with its command-line flags, or a worker if the process was
// started as one. Writes rows to standard output, progress and errors to
// standard error. Returns the exit code: 0, 1 for a failed run, 2 for invalid
// flags. The tool starts this program again as its workers, so call it from
// main, before threads exist.
int CommBenchMain(int argc, char** argv, const EngineCatalogue& catalogue);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_MAIN_H_
