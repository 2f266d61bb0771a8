#include "tools/comm_bench/job.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/socket.h"
#include "tools/launch/launch_command.h"

namespace tessera::tools {
namespace {

using collectives::Deadline;

constexpr absl::Duration kTimeout = absl::Minutes(2);
// Time for the answers of the other ranks after one has failed.
constexpr absl::Duration kAfterFailure = absl::Milliseconds(400);
// Time for workers to leave their group in order.
constexpr absl::Duration kFarewell = absl::Seconds(5);

std::string DescribeExit(const siginfo_t& info) {
  return info.si_code == CLD_EXITED
             ? absl::StrCat("exited with code ", info.si_status)
             : absl::StrCat("was killed by ", SignalName(info.si_status));
}

bool AwaitExit(const Process& process, absl::Duration patience) {
  const auto ended = collectives::WaitReady(process.pidfd.get(), POLLIN,
                                            Deadline::After(patience));
  return ended.ok() && *ended;
}

// Cancelled if one of the signals ends the benchmark.
absl::Status CheckInterrupt(const SignalWatch* signals) {
  if (signals == nullptr) return absl::OkStatus();
  while (const std::optional<int> signal = signals->Next()) {
    if (*signal == SIGTSTP) SignalWatch::StopSelf();
    if (*signal == SIGINT || *signal == SIGTERM || *signal == SIGHUP ||
        *signal == SIGQUIT) {
      return absl::CancelledError(
          absl::StrCat("interrupted by ", SignalName(*signal)));
    }
  }
  return absl::OkStatus();
}

// Prefers a wrong result, then a death, then the errors that it causes
// elsewhere.
absl::Status FirstError(const std::vector<std::optional<Answer>>& answers) {
  const auto severity = [](const absl::Status& status) {
    if (status.ok()) return 0;
    if (absl::IsInternal(status)) return 3;
    return absl::IsUnknown(status) ? 2 : 1;
  };
  absl::Status first;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (!answers[r].has_value()) continue;
    const absl::Status& status = answers[r]->status;
    if (severity(status) > severity(first)) {
      first = Annotate(status, absl::StrCat("rank ", r));
    }
  }
  return first;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> Job::Start(const JobSpec& spec,
                                                const SignalWatch* signals) {
  std::unique_ptr<Job> job(new Job(spec, signals));
  const Deadline deadline = Deadline::After(kTimeout);
  absl::Status status = job->Launch();
  if (status.ok()) status = job->AcceptWorkers(deadline);
  if (status.ok()) {
    const auto answers = job->Collect(deadline);
    if (answers.ok()) {
      job->capabilities_ = (*answers)[0].capabilities;
      return job;
    }
    status = answers.status();
  }
  job->End();
  return job->Annotated(status);
}

absl::Status Job::Annotated(const absl::Status& status) const {
  return Annotate(status, absl::StrCat("engine ", spec_.engine, " with ",
                                       spec_.world, " ranks"));
}

absl::Status Job::Launch() {
  TESSERA_ASSIGN_OR_RETURN(const BenchEngine engine,
                           FindBenchEngine(spec_.device, spec_.engine));
  launch_ = engine.launch;
  workers_.resize(static_cast<size_t>(spec_.world));
  TESSERA_ASSIGN_OR_RETURN(const std::string random,
                           collectives::RandomHex(16));
  const std::string name = absl::StrCat("tessera-comm-bench-", random);
  TESSERA_ASSIGN_OR_RETURN(const auto address,
                           collectives::SocketAddress::Abstract(name));
  TESSERA_ASSIGN_OR_RETURN(listener_, collectives::Listen(address));
  TESSERA_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  std::vector<std::string> arguments = WorkerArguments(spec_, name);
  if (launch_ == LaunchMethod::kMpirun) {
    TESSERA_ASSIGN_OR_RETURN(LaunchCommand mpirun,
                             MpirunCommand(spec_.world, program, arguments));
    return LaunchOne(std::move(mpirun.path), std::move(mpirun.arguments),
                     std::move(mpirun.environment), {});
  }
  arguments.insert(arguments.begin(), program);
  if (launch_ == LaunchMethod::kProcesses) return LaunchRanks(arguments);
  return LaunchOne(program, std::move(arguments), CleanEnvironment(), {});
}

absl::Status Job::LaunchRanks(const std::vector<std::string>& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const auto sockets,
                           collectives::MakeInheritedSockets(spec_.world));
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    std::vector<std::string> environment = CleanEnvironment();
    environment.push_back(absl::StrCat("RANK=", rank));
    environment.push_back(absl::StrCat("WORLD_SIZE=", spec_.world));
    environment.push_back(absl::StrCat("LOCAL_RANK=", rank));
    environment.push_back(absl::StrCat(collectives::kInheritedSocketsVariable,
                                       "=", sockets[rank].value));
    TESSERA_RETURN_IF_ERROR(LaunchOne(arguments[0], arguments,
                                      std::move(environment),
                                      sockets[rank].numbers()));
  }
  return absl::OkStatus();
}

absl::Status Job::LaunchOne(std::string path,
                            std::vector<std::string> arguments,
                            std::vector<std::string> environment,
                            std::vector<int> inherited) {
  SpawnRequest request;
  request.path = std::move(path);
  request.arguments = std::move(arguments);
  request.environment = std::move(environment);
  request.inherited = std::move(inherited);
  request.in = SpawnRequest::kNoInput;
  request.out = STDERR_FILENO;
  request.own_session = false;
  if (signals_ != nullptr) request.mask = signals_->original_mask();
  TESSERA_ASSIGN_OR_RETURN(processes_.emplace_back(), Spawn(request));
  return absl::OkStatus();
}

// Waits until one of the descriptors is readable; false at the deadline.
absl::StatusOr<bool> Job::Wait(const std::vector<int>& descriptors,
                               const Deadline& deadline) const {
  std::vector<pollfd> polls;
  for (const int fd : descriptors) polls.push_back({fd, POLLIN, 0});
  if (signals_ != nullptr) polls.push_back({signals_->fd(), POLLIN, 0});
  const int ready = poll(polls.data(), polls.size(), deadline.PollMillis());
  if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
  TESSERA_RETURN_IF_ERROR(CheckInterrupt(signals_));
  return ready != 0 || !deadline.Expired();
}

absl::Status Job::AcceptWorkers(const Deadline& deadline) {
  std::vector<int> descriptors = {listener_.get()};
  for (const Process& process : processes_) {
    descriptors.push_back(process.pidfd.get());
  }
  while (greeted_ < workers_.size()) {
    TESSERA_ASSIGN_OR_RETURN(const bool in_time, Wait(descriptors, deadline));
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("only ", greeted_, " workers connected within ",
                       absl::FormatDuration(kTimeout)));
    }
    TESSERA_RETURN_IF_ERROR(AcceptWorker(deadline));
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (AwaitExit(processes_[i], absl::ZeroDuration())) return DeathOf(i);
    }
  }
  for (const Worker& worker : workers_) {
    TESSERA_RETURN_IF_ERROR(SendStruct(worker.socket, Greeting(), deadline));
  }
  return absl::OkStatus();
}

absl::Status Job::AcceptWorker(const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, collectives::Accept(listener_));
  if (!socket.valid()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(collectives::CheckSameUser(socket));
  TESSERA_ASSIGN_OR_RETURN(const auto greeting,
                           ReceiveStruct<Greeting>(socket, deadline));
  const auto rank = static_cast<size_t>(greeting.rank);
  if (rank >= workers_.size() || workers_[rank].socket.valid()) {
    return absl::InternalError(absl::StrCat(
        "pid ", greeting.pid, " claims to be rank ", greeting.rank));
  }
  workers_[rank] = {std::move(socket), greeting.pid};
  ++greeted_;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Answer>> Job::Ask(const Task& task) {
  const Deadline deadline = Deadline::After(kTimeout);
  absl::Status sent;
  for (const Worker& worker : workers_) {
    // Collect finds workers that cannot be reached.
    sent.Update(SendStruct(worker.socket, task, deadline));
  }
  absl::StatusOr<std::vector<Answer>> answers = Collect(deadline);
  if (answers.ok() && sent.ok()) return answers;
  End();
  return Annotated(answers.ok() ? sent : answers.status());
}

absl::StatusOr<std::vector<Answer>> Job::Collect(const Deadline& limit) {
  std::vector<std::optional<Answer>> answers(workers_.size());
  Deadline deadline = limit;
  while (true) {
    std::vector<int> missing;
    for (size_t r = 0; r < workers_.size(); ++r) {
      if (!answers[r]) missing.push_back(workers_[r].socket.get());
    }
    if (missing.empty()) break;
    TESSERA_ASSIGN_OR_RETURN(const bool in_time, Wait(missing, deadline));
    if (!in_time) break;
    const bool had_failed = !FirstError(answers).ok();
    TESSERA_RETURN_IF_ERROR(CollectReady(limit, answers));
    if (!had_failed && !FirstError(answers).ok()) {
      deadline = Deadline::After(kAfterFailure);
    }
  }
  TESSERA_RETURN_IF_ERROR(FirstError(answers));
  std::vector<Answer> all;
  for (std::optional<Answer>& answer : answers) {
    if (!answer) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", all.size(), " did not answer within ",
                       absl::FormatDuration(kTimeout)));
    }
    all.push_back(*std::move(answer));
  }
  return all;
}

absl::Status Job::CollectReady(const Deadline& deadline,
                               std::vector<std::optional<Answer>>& answers) {
  for (size_t r = 0; r < workers_.size(); ++r) {
    if (answers[r]) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const bool is_ready,
        collectives::WaitReady(workers_[r].socket.get(), POLLIN,
                               Deadline::After(absl::ZeroDuration())));
    if (is_ready) answers[r] = AnswerOf(r, deadline);
  }
  return absl::OkStatus();
}

// The death of a worker is an answer, too.
Answer Job::AnswerOf(size_t rank, const Deadline& deadline) {
  absl::StatusOr<Answer> answer =
      ReceiveAnswer(workers_[rank].socket, deadline);
  if (!answer.ok()) {
    answer = Answer();
    answer->status = DeathOf(rank);
  }
  return *std::move(answer);
}

// How the worker of `rank` (or the one process of all ranks) ended. Unknown, a
// code that no engine uses.
absl::Status Job::DeathOf(size_t rank) {
  const int64_t pid = workers_[rank].pid;
  const std::string name =
      pid == 0 ? "a worker" : absl::StrCat("its process ", pid);
  if (launch_ != LaunchMethod::kMpirun) {
    const Process& process =
        processes_[launch_ == LaunchMethod::kProcesses ? rank : 0];
    siginfo_t info = {};
    AwaitExit(process, absl::Seconds(1));
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info,
               WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == process.pid) {
      return absl::UnknownError(absl::StrCat(name, " ", DescribeExit(info)));
    }
  }
  return absl::UnknownError(absl::StrCat(name, " has ended"));
}

void Job::End() {
  workers_.clear();  // A worker whose parent is gone stops serving.
  const bool is_mpirun = launch_ == LaunchMethod::kMpirun;
  for (const Process& process : processes_) {
    if (is_mpirun) kill(process.pid, SIGTERM);
    if (!AwaitExit(process, is_mpirun ? kFarewell : absl::ZeroDuration())) {
      kill(process.pid, SIGKILL);
    }
  }
  for (const Process& process : processes_) {
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  processes_.clear();
}

Job::~Job() {
  const Deadline deadline = Deadline::After(kFarewell);
  for (const Worker& worker : workers_) {
    static_cast<void>(SendStruct(worker.socket, Task(), deadline));
  }
  for (const Process& process : processes_) {
    if (!workers_.empty()) AwaitExit(process, deadline.Left());
  }
  End();
}

}  // namespace tessera::tools
