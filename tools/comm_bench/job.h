// Job: the parent's side of the workers of one engine, which are started once
// and serve many tasks.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Job> job,
//       Job::Start({&catalogue, "shared_memory", 4}));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<Answer> answers, job->Ask(task));
//
// A worker that dies or fails ends the job: no process of it is left when Ask
// returns. The destructor ends the job in order. If this process is killed, the
// workers die with it.
#ifndef TESSERA_TOOLS_COMM_BENCH_JOB_H_
#define TESSERA_TOOLS_COMM_BENCH_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/task.h"
#include "tools/comm_bench/worker.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"

namespace tessera::tools {

struct JobSpec {
  const EngineCatalogue* catalogue = nullptr;
  std::string device = "cpu";
  std::string engine;
  int64_t world = 1;
  int64_t group_size = 0;
  bool bind = true;
  absl::Duration timeout = absl::Seconds(120);  // For the start and each task.
  // A signal cancels waits with Cancelled. Null: signals are not watched.
  const SignalWatch* signals = nullptr;
};

class Job {
 public:
  // Errors name the engine and the rank, if any: NotFound without mpirun,
  // Unavailable if a worker died, or the worker's own error.
  static absl::StatusOr<std::unique_ptr<Job>> Start(const JobSpec& spec);
  ~Job();

  const JobSpec& spec() const { return spec_; }
  const Capabilities& capabilities() const { return capabilities_; }

  // The answers of all ranks, by rank, if all succeeded.
  absl::StatusOr<std::vector<Answer>> Ask(const Task& task);

 private:
  explicit Job(JobSpec spec) : spec_(std::move(spec)) {}

  absl::Status Launch();
  absl::Status LaunchProcesses(const std::string& program);
  absl::Status LaunchOne(const std::string& program,
                         std::vector<std::string> arguments,
                         std::vector<std::string> environment,
                         std::vector<int> inherited);
  absl::Status AcceptWorkers(const collectives::Deadline& deadline);
  absl::Status AcceptWorker(const collectives::Deadline& deadline);
  absl::Status SetUpWorkers(const collectives::Deadline& deadline);
  absl::StatusOr<std::vector<Answer>> Collect(
      const collectives::Deadline& deadline);
  absl::Status CollectReady(const collectives::Deadline& deadline,
                            std::vector<Answer>& answers,
                            std::vector<bool>& has_answered);
  absl::Status FirstError(const std::vector<Answer>& answers,
                          const std::vector<bool>& has_answered) const;
  absl::Status DeathOf(size_t rank);
  absl::Status CheckInterrupt() const;
  absl::Status Annotated(const absl::Status& status) const;
  bool AwaitExit(const Process& process, absl::Duration patience) const;
  void End();

  JobSpec spec_;
  LaunchMethod launch_ = LaunchMethod::kProcesses;
  Capabilities capabilities_;
  UniqueFd listener_;
  std::string socket_name_;
  std::vector<Process> processes_;
  std::vector<UniqueFd> workers_;  // By rank.
  std::vector<int64_t> pids_;      // By rank.
  size_t greeted_ = 0;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_JOB_H_
