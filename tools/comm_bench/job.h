// Job: the parent's side of the workers of one engine, which are started once
// and serve many tasks.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Job> job,
//       Job::Start({.engine = "shared_memory", .world = 4}));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<Answer> answers, job->Ask(task));
//
// A worker that dies or fails ends the job: no process of it is left when Ask
// returns. The destructor ends the job in order. If this process is killed, the
// workers die with it.
#ifndef TESSERA_TOOLS_COMM_BENCH_JOB_H_
#define TESSERA_TOOLS_COMM_BENCH_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"
#include "tools/comm_bench/bench_engines.h"
#include "tools/comm_bench/task.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"

namespace tessera::tools {

class Job {
 public:
  // A signal cancels waits with Cancelled; null: signals are not watched. The
  // start and each task may take two minutes. Errors name the engine and the
  // rank, if any: NotFound without mpirun, Unknown if a worker died, or the
  // worker's own error.
  static absl::StatusOr<std::unique_ptr<Job>> Start(
      const JobSpec& spec, const SignalWatch* signals = nullptr);
  ~Job();

  const JobSpec& spec() const { return spec_; }
  const Capabilities& capabilities() const { return capabilities_; }

  // The answers of all ranks, by rank, if all succeeded.
  absl::StatusOr<std::vector<Answer>> Ask(const Task& task);

 private:
  struct Worker {
    UniqueFd socket;
    int64_t pid = 0;
  };

  Job(JobSpec spec, const SignalWatch* signals)
      : spec_(std::move(spec)), signals_(signals) {}

  absl::Status Launch();
  absl::Status LaunchOne(std::string path, std::vector<std::string> arguments,
                         std::vector<std::string> environment,
                         std::vector<int> inherited);
  absl::Status LaunchRanks(const std::vector<std::string>& arguments);
  absl::Status AcceptWorkers(const collectives::Deadline& deadline);
  absl::Status AcceptWorker(const collectives::Deadline& deadline);
  absl::StatusOr<std::vector<Answer>> Collect(
      const collectives::Deadline& limit);
  absl::Status CollectReady(const collectives::Deadline& deadline,
                            std::vector<std::optional<Answer>>& answers);
  Answer AnswerOf(size_t rank, const collectives::Deadline& deadline);
  absl::Status DeathOf(size_t rank);
  absl::StatusOr<bool> Wait(const std::vector<int>& descriptors,
                            const collectives::Deadline& deadline) const;
  absl::Status Annotated(const absl::Status& status) const;
  void End();

  const JobSpec spec_;
  const SignalWatch* const signals_;
  LaunchMethod launch_ = LaunchMethod::kProcesses;
  Capabilities capabilities_;
  UniqueFd listener_;
  std::vector<Process> processes_;
  std::vector<Worker> workers_;  // By rank.
  size_t greeted_ = 0;
};

// A worker: runs it if the process was started as one, and returns its exit
// code once the parent ends the job or is gone. Between tasks it waits in
// poll(2) and takes no processor time from other jobs. Every program that
// starts jobs begins like this, because its workers are the same binary:
//
//   int main(int argc, char** argv) {
//     if (const auto code = RunWorker(argc, argv)) return *code;
//     ...
//   }
//
// All ranks of a job execute the same tasks in the same order. Before each
// iteration the buffers are rewritten and a barrier of the engine under test,
// or of the host beside a device, aligns the ranks; neither is timed. An
// iteration is a batch of operations back to back, on a device enqueued and
// waited for once; its time, on this rank's CLOCK_MONOTONIC, is divided by the
// batch. The results of the first and the last iteration are checked.
std::optional<int> RunWorker(int argc, char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_JOB_H_
