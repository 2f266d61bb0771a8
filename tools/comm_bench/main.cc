#include "tools/comm_bench/comm_bench_main.h"

int main(int argc, char** argv) {
  return tessera::tools::CommBenchMain(argc, argv);
}
