#include "tools/offload_bench/offload_bench_tool.h"

int main(int argc, char** argv) {
  return tessera::offload_bench::OffloadBenchMain(argc, argv);
}
