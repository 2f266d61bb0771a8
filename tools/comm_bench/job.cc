#include "tools/comm_bench/job.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/socket.h"
#include "tools/comm_bench/worker.h"
#include "tools/launch/launch_command.h"

namespace tessera::tools {
namespace {

using collectives::Deadline;
using collectives::InheritedSockets;

// Time for the answers of the other ranks after one has failed.
constexpr absl::Duration kAfterFailure = absl::Milliseconds(400);
// Time for workers to leave their group in order.
constexpr absl::Duration kFarewell = absl::Seconds(5);

// Waits on `polls` and the signals; false at the deadline.
absl::StatusOr<bool> Poll(std::vector<pollfd> polls, const SignalWatch* signals,
                          const Deadline& deadline) {
  if (signals != nullptr) polls.push_back({signals->fd(), POLLIN, 0});
  const int ready = poll(polls.data(), polls.size(), deadline.PollMillis());
  if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
  return ready != 0 || !deadline.Expired();
}

std::string DescribeExit(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("was killed by ", SignalName(WTERMSIG(status)));
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> Job::Start(const JobSpec& spec) {
  std::unique_ptr<Job> job(new Job(spec));
  const Deadline deadline = Deadline::After(spec.timeout);
  absl::Status status = job->Launch();
  if (status.ok()) status = job->AcceptWorkers(deadline);
  if (status.ok()) status = job->SetUpWorkers(deadline);
  if (status.ok()) return job;
  job->End();
  return job->Annotated(status);
}

absl::Status Job::Annotated(const absl::Status& status) const {
  return Annotate(status, absl::StrCat("engine ", spec_.engine, " with ",
                                       spec_.world, " ranks"));
}

absl::Status Job::Launch() {
  TESSERA_ASSIGN_OR_RETURN(const EngineEntry entry,
                           spec_.catalogue->Find(spec_.device, spec_.engine));
  launch_ = entry.launch;
  TESSERA_ASSIGN_OR_RETURN(const std::string random,
                           collectives::RandomHex(16));
  socket_name_ = absl::StrCat("tessera-comm-bench-", random);
  TESSERA_ASSIGN_OR_RETURN(const auto address,
                           collectives::SocketAddress::Abstract(socket_name_));
  TESSERA_ASSIGN_OR_RETURN(listener_, collectives::Listen(address));
  workers_.resize(static_cast<size_t>(spec_.world));
  pids_.resize(workers_.size());
  TESSERA_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  switch (launch_) {
    case LaunchMethod::kThreads: {
      std::vector<std::string> arguments =
          WorkerArguments(socket_name_, spec_.world);
      arguments.insert(arguments.begin(), program);
      return LaunchOne(program, std::move(arguments), CleanEnvironment(), {});
    }
    case LaunchMethod::kMpirun: {
      TESSERA_ASSIGN_OR_RETURN(
          const LaunchCommand command,
          MpirunCommand(spec_.world, program,
                        WorkerArguments(socket_name_, /*threads=*/0)));
      return LaunchOne(command.path, command.arguments, command.environment,
                       {});
    }
    case LaunchMethod::kProcesses:
      break;
  }
  return LaunchProcesses(program);
}

absl::Status Job::LaunchProcesses(const std::string& program) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<InheritedSockets> sockets,
                           collectives::MakeInheritedSockets(spec_.world));
  std::vector<std::string> arguments =
      WorkerArguments(socket_name_, /*threads=*/0);
  arguments.insert(arguments.begin(), program);
  for (int64_t rank = 0; rank < spec_.world; ++rank) {
    const InheritedSockets& own = sockets[static_cast<size_t>(rank)];
    std::vector<std::string> environment = CleanEnvironment();
    environment.push_back(absl::StrCat("RANK=", rank));
    environment.push_back(absl::StrCat("WORLD_SIZE=", spec_.world));
    environment.push_back(absl::StrCat("LOCAL_RANK=", rank));
    environment.push_back(
        absl::StrCat(collectives::kInheritedSocketsVariable, "=", own.value));
    std::vector<int> inherited;
    for (const UniqueFd& fd : own.sockets) {
      inherited.push_back(fd.get());
    }
    TESSERA_RETURN_IF_ERROR(
        LaunchOne(program, arguments, std::move(environment), inherited));
  }
  return absl::OkStatus();
}

absl::Status Job::LaunchOne(const std::string& program,
                            std::vector<std::string> arguments,
                            std::vector<std::string> environment,
                            std::vector<int> inherited) {
  SpawnRequest request;
  request.path = program;
  request.arguments = std::move(arguments);
  request.environment = std::move(environment);
  request.inherited = std::move(inherited);
  request.in = SpawnRequest::kNoInput;
  request.out = STDERR_FILENO;
  request.own_session = false;
  if (spec_.signals != nullptr) request.mask = spec_.signals->original_mask();
  TESSERA_ASSIGN_OR_RETURN(Process process, Spawn(request));
  processes_.push_back(std::move(process));
  return absl::OkStatus();
}

absl::Status Job::CheckInterrupt() const {
  if (spec_.signals == nullptr) return absl::OkStatus();
  while (const std::optional<int> signal = spec_.signals->Next()) {
    if (*signal == SIGTSTP) SignalWatch::StopSelf();
    const bool ends = *signal == SIGINT || *signal == SIGTERM ||
                      *signal == SIGHUP || *signal == SIGQUIT;
    if (!ends) continue;
    return absl::CancelledError(
        absl::StrCat("interrupted by ", SignalName(*signal)));
  }
  return absl::OkStatus();
}

absl::Status Job::AcceptWorkers(const Deadline& deadline) {
  while (greeted_ < workers_.size()) {
    std::vector<pollfd> polls = {{listener_.get(), POLLIN, 0}};
    for (const Process& process : processes_) {
      polls.push_back({process.pidfd.get(), POLLIN, 0});
    }
    TESSERA_ASSIGN_OR_RETURN(const bool in_time,
                             Poll(polls, spec_.signals, deadline));
    TESSERA_RETURN_IF_ERROR(CheckInterrupt());
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("only ", greeted_, " workers connected within ",
                       absl::FormatDuration(spec_.timeout)));
    }
    TESSERA_RETURN_IF_ERROR(AcceptWorker(deadline));
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (AwaitExit(processes_[i], absl::ZeroDuration())) return DeathOf(i);
    }
  }
  return absl::OkStatus();
}

absl::Status Job::AcceptWorker(const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, collectives::Accept(listener_));
  if (!socket.valid()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(collectives::CheckSameUser(socket));
  TESSERA_ASSIGN_OR_RETURN(const Greeting greeting,
                           ReceiveGreeting(socket, deadline));
  if (greeting.rank < 0 || greeting.rank >= spec_.world ||
      workers_[static_cast<size_t>(greeting.rank)].valid()) {
    return absl::InternalError(absl::StrCat(
        "pid ", greeting.pid, " claims to be rank ", greeting.rank));
  }
  const auto rank = static_cast<size_t>(greeting.rank);
  workers_[rank] = std::move(socket);
  pids_[rank] = greeting.pid;
  ++greeted_;
  return absl::OkStatus();
}

absl::Status Job::SetUpWorkers(const Deadline& deadline) {
  WorkerSetup setup;
  std::strncpy(setup.engine, spec_.engine.c_str(), sizeof(setup.engine) - 1);
  std::strncpy(setup.device, spec_.device.c_str(), sizeof(setup.device) - 1);
  setup.world = spec_.world;
  setup.group_size = spec_.group_size;
  setup.bind = spec_.bind;
  for (const UniqueFd& worker : workers_) {
    TESSERA_RETURN_IF_ERROR(collectives::SendAll(
        worker, {reinterpret_cast<const char*>(&setup), sizeof(setup)},
        deadline));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                           Collect(deadline));
  if (answers[0].seconds.size() != 1) {
    return absl::InternalError(
        "a worker did not report the capabilities of its engine");
  }
  capabilities_ = Capabilities::Unpack(answers[0].seconds[0]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Answer>> Job::Ask(const Task& task) {
  const Deadline deadline = Deadline::After(spec_.timeout);
  absl::Status sent;
  for (const UniqueFd& worker : workers_) {
    // Collect finds workers that cannot be reached.
    sent.Update(SendTask(worker, task, deadline));
  }
  absl::StatusOr<std::vector<Answer>> answers = Collect(deadline);
  if (answers.ok() && sent.ok()) return answers;
  End();
  return Annotated(answers.ok() ? sent : answers.status());
}

absl::StatusOr<std::vector<Answer>> Job::Collect(const Deadline& limit) {
  std::vector<Answer> answers(workers_.size());
  std::vector<bool> has_answered(workers_.size(), false);
  Deadline deadline = limit;
  while (true) {
    std::vector<pollfd> polls;
    for (size_t r = 0; r < workers_.size(); ++r) {
      if (!has_answered[r]) polls.push_back({workers_[r].get(), POLLIN, 0});
    }
    if (polls.empty()) break;
    TESSERA_ASSIGN_OR_RETURN(const bool in_time,
                             Poll(std::move(polls), spec_.signals, deadline));
    TESSERA_RETURN_IF_ERROR(CheckInterrupt());
    const bool had_failed = !FirstError(answers, has_answered).ok();
    if (!in_time) break;
    TESSERA_RETURN_IF_ERROR(CollectReady(limit, answers, has_answered));
    if (!had_failed && !FirstError(answers, has_answered).ok()) {
      deadline = Deadline::After(kAfterFailure);
    }
  }
  TESSERA_RETURN_IF_ERROR(FirstError(answers, has_answered));
  const auto missing =
      std::find(has_answered.begin(), has_answered.end(), false);
  if (missing == has_answered.end()) return answers;
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", missing - has_answered.begin(), " did not answer within ",
      absl::FormatDuration(spec_.timeout)));
}

absl::Status Job::CollectReady(const Deadline& deadline,
                               std::vector<Answer>& answers,
                               std::vector<bool>& has_answered) {
  for (size_t r = 0; r < workers_.size(); ++r) {
    if (has_answered[r]) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const bool is_ready,
        collectives::WaitReady(workers_[r].get(), POLLIN,
                               Deadline::After(absl::ZeroDuration())));
    if (!is_ready) continue;
    absl::StatusOr<Answer> answer = ReceiveAnswer(workers_[r], deadline);
    has_answered[r] = true;
    if (answer.ok()) {
      answers[r] = *std::move(answer);
    } else {
      answers[r].status = DeathOf(r);
    }
  }
  return absl::OkStatus();
}

// Prefers a wrong result, then a death, then the errors that it causes
// elsewhere.
absl::Status Job::FirstError(const std::vector<Answer>& answers,
                             const std::vector<bool>& has_answered) const {
  const auto severity = [](const absl::Status& status) {
    if (absl::IsInternal(status)) return 3;
    return absl::IsUnknown(status) ? 2 : 1;
  };
  absl::Status first;
  int highest = 0;
  for (size_t r = 0; r < answers.size(); ++r) {
    const absl::Status& status = answers[r].status;
    if (!has_answered[r] || status.ok() || severity(status) <= highest) {
      continue;
    }
    highest = severity(status);
    first = Annotate(status, absl::StrCat("rank ", r));
  }
  return first;
}

// How the worker of `rank` (or the one process of all ranks) ended. Unknown, a
// code that no engine uses.
absl::Status Job::DeathOf(size_t rank) {
  const std::string process_name =
      pids_[rank] == 0 ? std::string("a worker")
                       : absl::StrCat("its process ", pids_[rank]);
  const bool is_own = processes_.size() == workers_.size();
  if (is_own || launch_ == LaunchMethod::kThreads) {
    const Process& process = processes_[is_own ? rank : 0];
    siginfo_t info = {};
    AwaitExit(process, absl::Seconds(1));
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info,
               WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == process.pid) {
      const int status =
          info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
      return absl::UnknownError(
          absl::StrCat(process_name, " ", DescribeExit(status)));
    }
  }
  return absl::UnknownError(absl::StrCat(process_name, " has ended"));
}

bool Job::AwaitExit(const Process& process, absl::Duration patience) const {
  const Deadline deadline = Deadline::After(patience);
  const auto ended =
      collectives::WaitReady(process.pidfd.get(), POLLIN, deadline);
  return ended.ok() && *ended;
}

void Job::End() {
  workers_.clear();  // A worker whose parent is gone stops serving.
  for (const Process& process : processes_) {
    if (launch_ == LaunchMethod::kMpirun) kill(process.pid, SIGTERM);
    const absl::Duration patience =
        launch_ == LaunchMethod::kMpirun ? kFarewell : absl::ZeroDuration();
    if (!AwaitExit(process, patience)) kill(process.pid, SIGKILL);
  }
  for (const Process& process : processes_) {
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  processes_.clear();
}

Job::~Job() {
  const Deadline deadline = Deadline::After(kFarewell);
  for (const UniqueFd& worker : workers_) {
    static_cast<void>(SendTask(worker, Task(), deadline));
  }
  for (const Process& process : processes_) {
    if (!workers_.empty()) AwaitExit(process, deadline.Left());
  }
  End();
}

}  // namespace tessera::tools
