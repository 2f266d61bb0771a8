// RunWorker: a process of one job, which executes the tasks that the parent
// sends on a unix socket. Between tasks it waits in poll(2) and takes no
// processor time from other jobs.
//
//   int main(int argc, char** argv) {
//     if (IsWorker(argc, argv)) return RunWorker(argc, argv);
//     ...
//   }
//
// Every program that starts jobs begins like this, because its workers are the
// same binary.
#ifndef TESSERA_TOOLS_COMM_BENCH_WORKER_H_
#define TESSERA_TOOLS_COMM_BENCH_WORKER_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tools {

// The ranks of one engine, which serve many tasks.
struct JobSpec {
  std::string device = "cpu";
  std::string engine;
  int64_t world = 1;
  // Ranks [0, group_size), [group_size, 2 group_size), ... are near each other;
  // 0: all ranks are.
  int64_t group_size = 0;
  bool bind = true;  // Binds each rank to its share of the processors.
};

// The arguments of a worker. `socket` is the parent's name in the abstract
// namespace.
std::vector<std::string> WorkerArguments(const JobSpec& spec,
                                         const std::string& socket);

bool IsWorker(int argc, char** argv);

// All ranks of a job execute the same tasks in the same order. Before each
// iteration the buffers are rewritten and a barrier of the engine under test,
// or of the host beside a device, aligns the ranks; neither is timed. An
// iteration is a batch of operations back to back, on a device enqueued and
// waited for once; its time, on this rank's CLOCK_MONOTONIC, is divided by the
// batch. The results of the first and the last iteration are checked.
//
// Returns the exit code once the parent ends the job or is gone.
int RunWorker(int argc, char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_WORKER_H_
