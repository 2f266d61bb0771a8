#include "tools/comm_bench/built_in_engines.h"
#include "tools/comm_bench/comm_bench_tool.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return CommBenchMain(argc, argv, BuiltInEngines());
}
