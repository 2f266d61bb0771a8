// //tools/comm_bench as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_TOOL_H_
#define TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/engine_catalogue.h"

namespace tessera::tools {

// Name, summary and flags of the tool.
const Tool& CommBenchTool();

// Measures what the flags ask for on engines of the catalogue; data on `out`,
// progress on `err`.
absl::Status RunCommBench(const EngineCatalogue& catalogue, std::ostream& out,
                          std::ostream& err);

// The whole program: a worker where it was started as one, else the tool.
int CommBenchMain(int argc, char** argv, const EngineCatalogue& catalogue);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_COMM_BENCH_TOOL_H_
