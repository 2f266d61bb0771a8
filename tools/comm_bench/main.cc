#include "tools/comm_bench/comm_bench_main.h"
#include "tools/comm_bench/engine_catalogue.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return CommBenchMain(argc, argv, BuiltInEngines());
}
