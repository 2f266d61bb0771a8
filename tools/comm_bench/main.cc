#include "tools/cli/tool_registry.h"
#include "tools/comm_bench/comm_bench_main.h"

TESSERA_TOOL(comm_bench) { return tessera::tools::CommBenchMain(argc, argv); }
