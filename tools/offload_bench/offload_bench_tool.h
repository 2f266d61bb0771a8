// //tools/offload_bench as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_OFFLOAD_BENCH_TOOL_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_OFFLOAD_BENCH_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::offload_bench {

// Name, summary and flags of the tool.
const tools::Tool& OffloadBenchTool();

// Measures what the flags ask for; data on `out`, progress on `err`.
absl::Status RunOffloadBench(std::ostream& out, std::ostream& err);

// The whole program.
int OffloadBenchMain(int argc, char** argv);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_OFFLOAD_BENCH_TOOL_H_
