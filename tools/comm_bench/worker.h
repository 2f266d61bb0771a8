// The worker side of the benchmark: a process that belongs to one job, and
// carries out what the parent asks on a unix socket. Between tasks it waits in
// poll(2) and takes no processor time from other jobs.
//
//   int main(int argc, char** argv) {
//     if (IsWorker(argc, argv)) return RunWorker(argc, argv, catalogue);
//     ...
//   }
//
// Every program that starts jobs begins like this: its workers are the same
// binary.
#ifndef TESSERA_TOOLS_COMM_BENCH_WORKER_H_
#define TESSERA_TOOLS_COMM_BENCH_WORKER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/comm_bench/engine_catalogue.h"

namespace tessera::tools {

// What the parent tells each worker after its greeting. Travels as it is.
struct WorkerSetup {
  char engine[64] = {};
  int64_t world = 1;
  int64_t group_size = 0;  // As RankSession::Create's.
  bool bind = true;        // Each rank to its share of the processors.
};

// The arguments of a worker: it finds the parent at `socket`, a name in the
// abstract namespace. Where `threads` is more than 0, ranks 0 to threads - 1
// are threads of this process.
std::vector<std::string> WorkerArguments(const std::string& socket,
                                         int64_t threads);

bool IsWorker(int argc, char** argv);

// Returns the process's exit code when the parent is done with it, or is gone.
int RunWorker(int argc, char** argv, const EngineCatalogue& catalogue);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_WORKER_H_
