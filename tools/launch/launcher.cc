#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "tools/cli/cli.h"
#include "tools/launch/environment.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/multiplexer.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/rank_resources.h"
#include "tools/launch/signals.h"
#include "topology/rank.h"

namespace tessera::tools {
namespace {

using topology::Rank;

constexpr int64_t kMaxNodes = 1 << 20;
constexpr size_t kShownRanks = 8;

absl::Status CheckNodes(const LaunchPlan& plan) {
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("nnodes", plan.nnodes, 1, kMaxNodes));
  // A node in reserve starts only ranks of other nodes.
  const int64_t last = plan.ranks.empty() ? plan.nnodes - 1 : kMaxNodes;
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("node_rank", plan.node_rank, 0, last));
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("master_port", plan.master_port, 0, 65535));
  if (plan.nnodes == 1 || !plan.master_addr.empty()) return absl::OkStatus();
  return FlagError("master_addr", "",

                   "with --nnodes above 1, expected the address of the "
                   "node with --node_rank=0");
}

std::string Seconds(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return absl::StrFormat("%.*f s", seconds < 10 ? 2 : 0, seconds);
}

std::string ShowRanks(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i].value());
  }
  if (ranks.size() > kShownRanks) text += ", ...";
  return text;
}

std::string ShowAlsoFailed(const std::vector<RankExit>& exits) {
  if (exits.empty()) return "";
  std::vector<Rank> ranks;
  for (const RankExit& exit : exits) ranks.push_back(exit.rank);
  return absl::StrCat("; ", ShowRanks(ranks), " failed at the same time");
}

}  // namespace

std::string DescribeExit(const RankExit& exit) {
  return absl::StrCat(
      "rank ", exit.rank.value(), " (pid ", exit.pid, ") ",
      exit.by_signal ? absl::StrCat("was killed by ", SignalName(exit.code),
                                    exit.dumped_core ? " (core dumped)" : "")
                     : absl::StrCat("exited with code ", exit.code),
      " after ", Seconds(exit.ran));
}

absl::Status SetOutput(const std::string& value, LaunchPlan& plan) {
  std::error_code error;
  if (value == "prefix") {
    plan.output = OutputMode::kPrefix;
  } else if (value == "raw") {
    plan.output = OutputMode::kRaw;
  } else if (value.find('/') != std::string::npos ||
             std::filesystem::is_directory(value, error)) {
    plan.output = OutputMode::kFiles;
    plan.log_directory = value;
  } else {
    return FlagError(
        "output", value,

        "expected prefix, raw, or a directory: one that exists, or a "
        "path with a slash such as ./logs");
  }
  return absl::OkStatus();
}

absl::Status SetBind(const std::string& value, LaunchPlan& plan) {
  if (value != "none" && value != "core") {
    return FlagError("bind", value, "expected none or core");
  }
  plan.bind = value == "core" ? Bind::kCore : Bind::kNone;
  return absl::OkStatus();
}

absl::Status CheckPlan(const LaunchPlan& plan) {
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("np", plan.np, 1, LaunchPlan::kMaxRanks));
  TESSERA_RETURN_IF_ERROR(CheckNodes(plan));
  if (plan.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", absl::FormatDuration(plan.timeout),

                     "expected a time above 0, such as 90s or 2h");
  }
  if (plan.grace < absl::ZeroDuration()) {
    return FlagError("grace", absl::FormatDuration(plan.grace),
                     "expected a time from 0 up, such as 5s");
  }
  if (plan.command.empty()) {
    return absl::InvalidArgumentError(
        "no program; give it and its arguments after --");
  }
  return absl::OkStatus();
}

absl::StatusOr<LaunchPlan> PlanProgram(int64_t ranks, bool mpi,
                                       const std::string& program,
                                       std::vector<std::string> arguments) {
  LaunchPlan plan;
  plan.output = OutputMode::kRaw;
  plan.own_sessions = false;
  if (!mpi) {
    plan.np = ranks;
    plan.environment = CleanEnvironment();
    plan.command = std::move(arguments);
    plan.command.insert(plan.command.begin(), program);
    return plan;
  }
  TESSERA_ASSIGN_OR_RETURN(LaunchCommand mpirun,
                           MpirunCommand(ranks, program, arguments));
  plan.command = std::move(mpirun.arguments);
  // Open MPI takes a path before its name as the prefix of its installation on
  // all hosts.
  plan.command[0].erase(0, plan.command[0].rfind('/') + 1);
  plan.environment = std::move(mpirun.environment);
  return plan;
}

absl::Status LaunchOutcome::ToStatus() const {
  if (failure) {
    return absl::AbortedError(absl::StrCat(
        DescribeExit(*failure),
        exits.size() > 1 ? ", the first to fail; all ranks were ended" : "",
        ShowAlsoFailed(also_failed)));
  }
  if (!timed_out.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        ShowRanks(timed_out), " of ", exits.size(),
        " still ran after --timeout=", absl::FormatDuration(timeout),
        " and were ended"));
  }
  if (signal) {
    return absl::AbortedError(absl::StrCat("ended by ", SignalName(*signal)));
  }
  return absl::OkStatus();
}

int LaunchOutcome::ExitCode() const {
  if (failure || !timed_out.empty()) return 1;
  return signal ? 128 + *signal : 0;
}

namespace {

constexpr int64_t kTorchrunPort = 29500;
constexpr std::string_view kLoopback = "127.0.0.1";

absl::StatusOr<JobVariables> MakeJob(const LaunchPlan& plan) {
  JobVariables job = {.np = plan.np,
                      .nnodes = plan.nnodes,
                      .node_rank = plan.node_rank,
                      .master_addr = plan.master_addr,
                      .master_port = plan.master_port,
                      .secret = ""};
  if (job.master_addr.empty()) job.master_addr = kLoopback;
  if (job.master_port == 0 && plan.nnodes > 1) job.master_port = kTorchrunPort;
  if (job.master_port == 0) {
    TESSERA_ASSIGN_OR_RETURN(
        job.master_port,
        collectives::FreePort(kLoopback,
                              collectives::Deadline::After(absl::Seconds(5))),
        Annotate(_, "cannot find a free port; name one with --master_port"));
  }
  TESSERA_ASSIGN_OR_RETURN(job.secret,
                           MakeSecret(plan.environment, plan.nnodes));
  return job;
}

// The CPUs of each rank; empty for a rank that is not bound.
absl::StatusOr<std::vector<std::vector<int>>> BindRanks(
    const LaunchPlan& plan) {
  const size_t count = static_cast<size_t>(plan.np);
  if (plan.bind == Bind::kNone) return std::vector<std::vector<int>>(count);
  TESSERA_ASSIGN_OR_RETURN(
      auto cores, CoresForRanks(plan.np),
      absl::IsOutOfRange(_) ? FlagError("bind", "core", _) : _);
  return cores;
}

// The write end, and the non-blocking read end.
struct Pipe {
  UniqueFd writer;
  UniqueFd reader;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  Pipe pipe = {UniqueFd(ends[1]), UniqueFd(ends[0])};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read a pipe without blocking");
  }
  return pipe;
}

// The descriptors that a rank writes to.
struct RankOutput {
  UniqueFd out;
  UniqueFd err;  // Invalid if it is the same as `out`.

  int err_fd() const { return err.valid() ? err.get() : out.get(); }
};

absl::StatusOr<RankOutput> OpenPipes(size_t source, OutputMultiplexer& output) {
  TESSERA_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  TESSERA_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  output.Add(source, Stream::kOut, std::move(out.reader));
  output.Add(source, Stream::kErr, std::move(err.reader));
  return RankOutput{std::move(out.writer), std::move(err.writer)};
}

// `round` 0 begins a new file.
absl::StatusOr<RankOutput> OpenLog(const LaunchPlan& plan, Rank rank,
                                   size_t round) {
  std::error_code error;
  std::filesystem::create_directories(plan.log_directory, error);
  // If this fails, open fails too and reports the cause.
  const std::string path =
      absl::StrCat(plan.log_directory, "/rank", rank.value(), ".log");
  const int mode = round == 0 ? O_TRUNC : 0;
  UniqueFd file(open(path.c_str(),
                     O_WRONLY | O_CREAT | mode | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return RankOutput{std::move(file), UniqueFd()};
}

// The values that all ranks share, and the sockets and CPUs of each rank.
struct Preparation {
  JobVariables job;
  std::string program;
  // By round of the rendezvous and rank; empty on several nodes.
  std::vector<std::vector<collectives::InheritedSockets>> sockets;
  std::vector<std::vector<int>> cpus;
};

absl::StatusOr<Preparation> Prepare(const LaunchPlan& plan) {
  Preparation made;
  TESSERA_ASSIGN_OR_RETURN(made.job, MakeJob(plan));
  TESSERA_ASSIGN_OR_RETURN(
      made.program,
      FindProgram(plan.command[0],
                  FindVariable(plan.environment, "PATH").value_or("")));
  TESSERA_ASSIGN_OR_RETURN(made.cpus, BindRanks(plan));
  if (plan.nnodes > 1) return made;
  for (int64_t round = 0; round <= plan.replacements; ++round) {
    TESSERA_ASSIGN_OR_RETURN(made.sockets.emplace_back(),
                             collectives::MakeInheritedSockets(plan.np));
  }
  return made;
}

// The original signal mask and descriptor limit of this process, which the
// ranks get.
struct OriginalState {
  sigset_t mask;
  rlimit descriptor_limit;
};

// Starts the ranks of this node, and new processes in the place of failed ones.
class RankStarter {
 public:
  // Borrows its arguments. `output` reads the ranks' output, unless kFiles
  // sends it to files.
  RankStarter(const LaunchPlan& plan, const OriginalState& original,
              RankProcesses& ranks, OutputMultiplexer& output)
      : plan_(plan), original_(original), ranks_(ranks), output_(output) {}

  // After an error some ranks may be running.
  absl::Status StartAll();
  absl::Status Start(const RankStart& start);

 private:
  std::string LaterSockets(size_t local, size_t round) const;

  const LaunchPlan& plan_;
  const OriginalState original_;
  RankProcesses& ranks_;
  OutputMultiplexer& output_;
  Preparation made_;
};

absl::Status RankStarter::StartAll() {
  TESSERA_ASSIGN_OR_RETURN(made_, Prepare(plan_));
  for (const RankStart& start : plan_.ranks) {
    TESSERA_RETURN_IF_ERROR(Start(start));
  }
  if (!plan_.ranks.empty()) return absl::OkStatus();
  for (int64_t local = 0; local < plan_.np; ++local) {
    TESSERA_RETURN_IF_ERROR(Start({Rank(made_.job.first_rank() + local)}));
  }
  return absl::OkStatus();
}

std::string RankStarter::LaterSockets(size_t local, size_t round) const {
  std::vector<std::string_view> values;
  for (size_t later = round + 1; later < made_.sockets.size(); ++later) {
    values.push_back(made_.sockets[later][local].value);
  }
  return absl::StrJoin(values, ";");
}

// A rank of another node has the variables that it had there.
absl::Status RankStarter::Start(const RankStart& start) {
  const Rank rank = start.rank;
  const auto round = static_cast<size_t>(start.round);
  const auto local = static_cast<size_t>(rank.value() % plan_.np);
  JobVariables job = made_.job;
  job.node_rank = rank.value() / plan_.np;
  TESSERA_ASSIGN_OR_RETURN(const RankOutput end,
                           plan_.output == OutputMode::kFiles
                               ? OpenLog(plan_, rank, round)
                               : OpenPipes(local, output_));
  const bool has_sockets = plan_.nnodes == 1;
  std::string sockets, later;
  std::vector<int> inherited = plan_.inherited;
  if (has_sockets) {
    sockets = made_.sockets[round][local].value;
    later = LaterSockets(local, round);
    for (size_t i = round; i < made_.sockets.size(); ++i) {
      const std::vector<int> numbers = made_.sockets[i][local].numbers();
      inherited.insert(inherited.end(), numbers.begin(), numbers.end());
    }
  }
  TESSERA_RETURN_IF_ERROR(ranks_.Start(
      rank,
      {.path = made_.program,
       .arguments = plan_.command,
       .environment = RankEnvironment(
           plan_.environment, job, static_cast<int64_t>(local), sockets, later),
       .in = rank == Rank(0) ? STDIN_FILENO : SpawnRequest::kNoInput,
       .out = end.out.get(),
       .err = end.err_fd(),
       .inherited = std::move(inherited),
       .cpus = made_.cpus[local],
       .mask = original_.mask,
       .own_session = plan_.own_sessions,
       .descriptor_limit = original_.descriptor_limit}));
  // Peers notice the end of the process by its sockets, which no other process
  // may hold. Those of later rounds are kept for its successor.
  for (size_t i = 0; has_sockets && i <= round; ++i) {
    made_.sockets[i][local].sockets.clear();
  }
  return absl::OkStatus();
}

// Listing processes is expensive, and reaping zombies is not urgent.
constexpr std::chrono::seconds kReapInterval{1};
// The interval between calls of LaunchPlan::find_hung and take_over.
constexpr std::chrono::seconds kHungInterval{1};
// The peers of a rank that dies fail as well, and may be noticed before it:
// failures within this time count as one event.
constexpr std::chrono::milliseconds kSettleTime{20};
// kill(2) then only checks that the process exists.
constexpr int kNoSignal = 0;
// Longer durations are treated as infinite.
constexpr absl::Duration kForever = absl::Hours(24 * 365 * 10);

std::optional<std::chrono::steady_clock::time_point> After(
    absl::Duration duration) {
  if (duration > kForever) return std::nullopt;
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

// Waits for started ranks, forwards their output and signals, and ends them
// when one fails, at the timeout or on a signal.
class Supervisor {
 public:
  // Borrows its arguments.
  Supervisor(const LaunchPlan& plan, const SignalWatch& signals,
             RankStarter& starter, RankProcesses& ranks,
             OutputMultiplexer& output);

  // Returns when no process is left and all output is written. Must be called
  // only once.
  absl::StatusOr<LaunchOutcome> Run();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // Waits for the next events and handles them.
  void Step();
  int PollMillis() const;
  void HandleSignals();
  void HandleSignal(int signal);
  void HandleEndingSignal(int signal);
  void HandleExits();
  void NoteFailure(const RankExit& exit);
  void HandleTimers();
  // Replaces the ranks that have failed. False if that is not possible.
  bool ReplaceFailed();
  void KillHung();
  // Starts ranks of lost nodes.
  void TakeOver();

  // Sends `signal` to all ranks, which are killed after `grace`.
  void BeginEnd(int signal, absl::Duration grace);
  void Kill();
  // Stops the ranks and this process until it is continued.
  void Pause();

  absl::StatusOr<LaunchOutcome> Finish();

  const LaunchPlan& plan_;
  const SignalWatch& signals_;
  RankStarter& starter_;
  RankProcesses& ranks_;
  OutputMultiplexer& output_;

  LaunchOutcome outcome_;
  absl::Status output_status_;
  bool is_ending_ = false;
  bool is_impatient_ = false;  // SIGINT was received while ending.
  bool has_sigterm_ = false;   // SIGTERM was received.
  std::optional<Time> timeout_at_;
  std::optional<Time> kill_at_;    // The end of the grace period.
  std::optional<Time> settle_at_;  // The end of kSettleTime.
  std::optional<Time> reap_at_;    // The next call of ReapOrphans.
  std::optional<Time> hung_at_;    // The next KillHung and TakeOver.
  std::vector<pollfd> fds_;
};

Supervisor::Supervisor(const LaunchPlan& plan, const SignalWatch& signals,
                       RankStarter& starter, RankProcesses& ranks,
                       OutputMultiplexer& output)
    : plan_(plan),
      signals_(signals),
      starter_(starter),
      ranks_(ranks),
      output_(output) {
  outcome_.timeout = plan.timeout;
  if (plan.find_hung || plan.take_over) {
    hung_at_ = Clock::now() + kHungInterval;
  }
}

absl::StatusOr<LaunchOutcome> Supervisor::Run() {
  timeout_at_ = After(plan_.timeout);
  // Other nodes have ranks even if all of this one are being replaced.
  while (!ranks_.Running().empty() ||
         (plan_.nnodes > 1 && settle_at_ && plan_.replace)) {
    Step();
  }
  return Finish();
}

void Supervisor::Step() {
  fds_ = {{signals_.fd(), POLLIN, 0}, {ranks_.fd(), POLLIN, 0}};
  output_.AppendPollFds(fds_);
  poll(fds_.data(), fds_.size(), PollMillis());
  HandleSignals();
  HandleExits();
  output_status_.Update(output_.Service(fds_, Clock::now()));
  if (!output_status_.ok()) BeginEnd(SIGTERM, plan_.grace);
  HandleTimers();
}

int Supervisor::PollMillis() const {
  const Time now = Clock::now();
  int millis = output_.PollMillis(now);
  for (const std::optional<Time>& time :
       {timeout_at_, kill_at_, settle_at_, reap_at_, hung_at_}) {
    if (!time) continue;
    const int64_t left =
        std::chrono::ceil<std::chrono::milliseconds>(*time - now).count();
    const int bounded = static_cast<int>(
        std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
    millis = millis < 0 ? bounded : std::min(millis, bounded);
  }
  return millis;
}

void Supervisor::HandleSignals() {
  while (const std::optional<int> signal = signals_.Next()) {
    HandleSignal(*signal);
  }
}

void Supervisor::HandleSignal(int signal) {
  switch (signal) {
    case SIGCHLD:
      if (!reap_at_) reap_at_ = Clock::now() + kReapInterval;
      return;
    case SIGTSTP:
      Pause();
      return;
    case SIGUSR1:
      if (plan_.save_grace) return HandleEndingSignal(signal);
      [[fallthrough]];
    case SIGCONT:
    case SIGUSR2:
      if (signal == SIGUSR2 && plan_.on_user_signal) {
        return plan_.on_user_signal();
      }
      ranks_.Signal(signal);
      return;
    default:
      HandleEndingSignal(signal);
  }
}

void Supervisor::HandleEndingSignal(int signal) {
  const bool saves =
      plan_.save_grace && (signal == SIGTERM || signal == SIGUSR1);
  const bool is_repeated = signal == SIGTERM && has_sigterm_;
  has_sigterm_ |= signal == SIGTERM;
  if (!is_ending_) {
    if (!outcome_.failure) outcome_.signal = signal;
    BeginEnd(saves ? SIGUSR1 : signal, saves ? *plan_.save_grace : plan_.grace);
  } else if (signal == SIGINT || (saves && is_repeated)) {
    is_impatient_ = true;
    Kill();
  } else {
    ranks_.Signal(signal);
  }
}

void Supervisor::HandleExits() {
  for (RankExit& exit : ranks_.TakeExits()) {
    const bool was_asked = !exit.by_signal && exit.code == 128 + SIGTERM;
    if (was_asked && !is_ending_ && !outcome_.failure) {
      outcome_.signal = SIGTERM;
      BeginEnd(kNoSignal, plan_.grace);
    }
    if (!exit.success()) NoteFailure(exit);
    outcome_.exits.push_back(std::move(exit));
  }
}

void Supervisor::NoteFailure(const RankExit& exit) {
  if (is_ending_) {
    // The others cannot save their work without it.
    const std::optional<Time> soon = After(plan_.grace);
    if (soon && (!kill_at_ || *soon < *kill_at_)) kill_at_ = soon;
    return;
  }
  if (!outcome_.failure) {
    outcome_.failure = exit;
    settle_at_ = Clock::now() + kSettleTime;
    return;
  }
  outcome_.also_failed.push_back(exit);
  if (exit.by_signal && !outcome_.failure->by_signal) {
    std::swap(*outcome_.failure, outcome_.also_failed.back());
  }
}

void Supervisor::HandleTimers() {
  const Time now = Clock::now();
  if (settle_at_ && now >= *settle_at_) {
    settle_at_.reset();
    if (!ReplaceFailed()) {
      if (plan_.on_failure) plan_.on_failure();
      BeginEnd(SIGTERM, plan_.grace);
    }
  }
  if (hung_at_ && now >= *hung_at_) {
    KillHung();
    TakeOver();
    const int signal = plan_.next_signal ? plan_.next_signal() : 0;
    if (signal != 0 && !is_ending_) ranks_.Signal(signal);
    hung_at_ = Clock::now() + kHungInterval;
  }
  if (reap_at_ && now >= *reap_at_) {
    reap_at_.reset();
    ranks_.ReapOrphans();
  }
  if (timeout_at_ && now >= *timeout_at_) {
    timeout_at_.reset();
    if (!outcome_.failure) outcome_.timed_out = ranks_.Running();
    BeginEnd(SIGTERM, plan_.grace);
  }
  if (kill_at_ && now >= *kill_at_) Kill();
}

bool Supervisor::ReplaceFailed() {
  if (plan_.replace == nullptr) return false;
  std::vector<RankExit> failed = outcome_.also_failed;
  failed.push_back(*outcome_.failure);
  std::vector<RankStart> starts;
  for (const RankExit& exit : failed) {
    const std::optional<int64_t> round = plan_.replace(exit);
    if (!round || *round > plan_.replacements) return false;
    starts.push_back({exit.rank, *round});
  }
  for (const RankStart& start : starts) {
    if (!starter_.Start(start).ok()) return false;
  }
  outcome_.failure.reset();
  outcome_.also_failed.clear();
  return true;
}

void Supervisor::KillHung() {
  if (is_ending_ || settle_at_ || plan_.find_hung == nullptr) return;
  for (const Rank rank : plan_.find_hung(ranks_.Stopped())) {
    ranks_.SignalRank(rank, SIGKILL);
  }
}

void Supervisor::TakeOver() {
  if (is_ending_ || plan_.take_over == nullptr) return;
  for (const RankStart& start : plan_.take_over()) {
    const absl::Status started = starter_.Start(start);
    if (started.ok()) continue;
    outcome_.failure = RankExit{.rank = start.rank, .code = 1};
    BeginEnd(SIGTERM, plan_.grace);
    return;
  }
}

void Supervisor::BeginEnd(int signal, absl::Duration grace) {
  if (is_ending_) return;
  is_ending_ = true;
  kill_at_ = After(grace);
  timeout_at_.reset();
  settle_at_.reset();
  hung_at_.reset();
  ranks_.Signal(signal);
  ranks_.Signal(SIGCONT);  // Stopped processes do not handle signals.
}

void Supervisor::Kill() {
  kill_at_.reset();
  ranks_.Signal(SIGKILL);
}

void Supervisor::Pause() {
  // SIGTSTP has no effect by default, because the ranks' sessions have no
  // terminal.
  ranks_.Signal(SIGSTOP);
  const Time stopped = Clock::now();
  SignalWatch::StopSelf();
  const Clock::duration pause = Clock::now() - stopped;
  ranks_.Signal(SIGCONT);
  if (timeout_at_) *timeout_at_ += pause;
  if (kill_at_) *kill_at_ += pause;
}

absl::StatusOr<LaunchOutcome> Supervisor::Finish() {
  const absl::Status killed = ranks_.KillAll();
  output_status_.Update(output_.ReadRemaining());
  // Waits for a slow reader, such as a pager, unless a signal or the timeout
  // ends the launch.
  const bool must_end = outcome_.signal || !outcome_.timed_out.empty();
  kill_at_ = must_end ? After(plan_.grace) : std::nullopt;
  timeout_at_.reset();
  while (output_.has_pending() && !is_impatient_) {
    if (kill_at_ && Clock::now() >= *kill_at_) break;
    fds_ = {{signals_.fd(), POLLIN, 0}};
    output_.AppendPollFds(fds_);
    poll(fds_.data(), fds_.size(), PollMillis());
    HandleSignals();
    output_status_.Update(output_.Service(fds_, Clock::now()));
  }
  TESSERA_RETURN_IF_ERROR(killed);
  const bool has_ended_otherwise = outcome_.failure || must_end;
  if (!has_ended_otherwise) TESSERA_RETURN_IF_ERROR(output_status_);
  return std::move(outcome_);
}

// A rank needs two pipes, two ends of a socket in each round of the rendezvous,
// and a pidfd; the rest is for this process.
rlim_t DescriptorsFor(const LaunchPlan& plan) {
  return static_cast<rlim_t>((5 + 2 * plan.replacements) * plan.np + 128);
}

LineWriter MakeWriter(const LaunchPlan& plan) {
  if (plan.output != OutputMode::kPrefix) return LineWriter();
  return LineWriter(RankPrefixes(plan.node_rank * plan.np, plan.np,
                                 plan.nnodes * plan.np, plan.colour));
}

void HideOuterSockets(std::span<const std::string> environment) {
  for (const std::string_view variable :
       {collectives::kInheritedSocketsVariable,
        collectives::kLaterSocketsVariable}) {
    const std::string_view numbers =
        FindVariable(environment, variable).value_or("");
    for (std::string_view number :
         absl::StrSplit(numbers, absl::ByAnyChar(",;"))) {
      int fd = -1;
      struct stat file;
      if (absl::SimpleAtoi(number, &fd) && fd > STDERR_FILENO &&
          fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode)) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
      }
    }
  }
}

}  // namespace

absl::StatusOr<LaunchOutcome> Launch(const LaunchPlan& plan,
                                     const LaunchSinks& sinks) {
  TESSERA_RETURN_IF_ERROR(CheckPlan(plan));
  HideOuterSockets(plan.environment);
  TESSERA_ASSIGN_OR_RETURN(const auto signals, SignalWatch::Create());
  TESSERA_ASSIGN_OR_RETURN(const auto limit,
                           DescriptorLimit::Raise(DescriptorsFor(plan)));
  TESSERA_ASSIGN_OR_RETURN(const auto ranks, RankProcesses::Create());
  OutputMultiplexer output(sinks.out_fd, sinks.err_fd, MakeWriter(plan));
  RankStarter starter(plan, {signals->original_mask(), limit->original()},
                      *ranks, output);
  TESSERA_RETURN_IF_ERROR(starter.StartAll());
  return Supervisor(plan, *signals, starter, *ranks, output).Run();
}

}  // namespace tessera::tools
