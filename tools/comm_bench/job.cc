#include "tools/comm_bench/job.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "nlohmann/json.hpp"
#include "tools/comm_bench/bench_engines.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/launcher.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker=";

// The keys of lines.
constexpr char kProgress[] = "progress";
constexpr char kRows[] = "rows";
constexpr char kCode[] = "code";
constexpr char kMessage[] = "message";

// A wrong result is a cause; the loss of another rank need not be.
int Severity(const absl::Status& status) {
  if (status.ok()) return 0;
  if (absl::IsInternal(status)) return 3;
  return absl::IsUnavailable(status) || absl::IsAborted(status) ? 1 : 2;
}

// Receives the lines of the processes on a thread of its own.
class Receiver {
 public:
  static absl::StatusOr<std::unique_ptr<Receiver>> Create(
      const BenchEvents& events) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      return absl::ErrnoToStatus(errno, "cannot make a pipe");
    }
    return std::unique_ptr<Receiver>(new Receiver(events, ends));
  }
  ~Receiver() { Finish(); }

  int fd() const { return writer_.get(); }

  // Returns when all lines have been handled; no process writes any more.
  void Finish() {
    writer_ = UniqueFd();
    if (thread_.joinable()) thread_.join();
  }

  // After Finish: the most severe error, the first of these; and the last
  // progress.
  const absl::Status& error() const { return error_; }
  const std::string& where() const { return where_; }

 private:
  Receiver(const BenchEvents& events, const int (&ends)[2])
      : events_(events), writer_(ends[1]) {
    // Only the launcher's thread handles signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this, fd = ends[0]] { Read(fd); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void Read(int fd) {
    FILE* const file = fdopen(fd, "r");
    char* line = nullptr;
    size_t room = 0;
    for (ssize_t n = 0; (n = getline(&line, &room, file)) > 0;) {
      Handle(std::string_view(line, static_cast<size_t>(n)));
    }
    free(line);
    fclose(file);
  }

  void Handle(std::string_view line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {  // Of a library.
      std::cerr << line;
    } else if (json.contains(kProgress)) {
      where_ = json[kProgress];
      events_.on_progress(where_);
    } else if (json.contains(kRows)) {
      std::vector<Row> rows;
      for (const Json& row : json[kRows]) rows.push_back(RowFromJson(row));
      events_.on_case(rows);
    } else if (json.contains(kCode)) {
      const absl::Status error(static_cast<absl::StatusCode>(json[kCode]),
                               std::string(json[kMessage]));
      if (Severity(error) > Severity(error_)) error_ = error;
    }
  }

  const BenchEvents& events_;
  UniqueFd writer_;
  std::string where_;
  absl::Status error_;
  std::thread thread_;
};

absl::StatusOr<LaunchPlan> PlanFor(int64_t processes, int64_t world, bool mpi,
                                   std::vector<std::string> arguments) {
  TESSERA_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  arguments.insert(arguments.begin(), absl::StrCat(kWorkerArgument, world));
  LaunchPlan plan;
  plan.output = OutputMode::kRaw;
  plan.grace = absl::Milliseconds(500);
  plan.own_sessions = false;
  if (!mpi) {
    plan.np = processes;
    plan.environment = CleanEnvironment();
    plan.command = std::move(arguments);
    plan.command.insert(plan.command.begin(), program);
    return plan;
  }
  TESSERA_ASSIGN_OR_RETURN(LaunchCommand mpirun,
                           MpirunCommand(processes, program, arguments));
  plan.command = std::move(mpirun.arguments);
  // Open MPI takes a path before its name as the prefix of its installation.
  plan.command[0].erase(0, plan.command[0].rfind('/') + 1);
  plan.environment = std::move(mpirun.environment);
  // Ranks bind themselves.
  plan.environment.push_back("OMPI_MCA_hwloc_base_binding_policy=none");
  return plan;
}

// Why the run failed.
absl::Status StatusOf(const LaunchOutcome& outcome, const Receiver& receiver,
                      bool mpi) {
  const bool died = outcome.failure.has_value() && outcome.failure->by_signal;
  if (!outcome.signal.has_value() && !receiver.error().ok() &&
      (!died || absl::IsInternal(receiver.error()))) {
    return receiver.error();
  }
  if (mpi && outcome.failure.has_value()) {
    return absl::AbortedError(
        absl::StrCat(receiver.where(), ": mpirun exited with code ",
                     outcome.failure->code, "; its messages name the rank"));
  }
  return Annotate(outcome.ToStatus(), receiver.where());
}

// Sends a line to the parent. A single write, because threads may fail
// together.
void Send(const Json& json) {
  const std::string line =
      json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // If the parent is gone, so is this process.
  [[maybe_unused]] const auto written =
      write(STDOUT_FILENO, line.data(), line.size());
}

// Ends this process; the launcher ends the others.
void Fail(const absl::Status& status) {
  Send({{kCode, status.raw_code()}, {kMessage, status.message()}});
  _exit(1);
}

// The launcher's variables. mpirun's ranks inherit those of mpirun's launcher,
// which are wrong for them.
std::optional<std::string> LauncherVariable(std::string_view name) {
  static const auto lookup = collectives::ProcessEnvironment();
  const bool is_mpi = lookup("OMPI_COMM_WORLD_RANK") || lookup("PMI_RANK");
  const std::string_view outer[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE", "GROUP_RANK"};
  const bool is_outer =
      std::find(std::begin(outer), std::end(outer), name) != std::end(outer);
  return is_mpi && is_outer ? std::nullopt : lookup(name);
}

absl::Status RunProcess(int64_t world,
                        const std::vector<std::string>& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const BenchOptions options, ParseOptions(arguments));
  TESSERA_ASSIGN_OR_RETURN(const collectives::Job job,
                           collectives::JoinJob(LauncherVariable));
  BenchEvents events = {.on_case = [](const std::vector<Row>&) {},
                        .on_progress = [](const std::string&) {}};
  if (job.rank == topology::Rank(0)) {
    events.on_progress = [](const std::string& where) {
      Send({{kProgress, where}});
    };
    events.on_case = [](const std::vector<Row>& rows) {
      Json json = Json::array();
      for (const Row& row : rows) json.push_back(RowToJson(row));
      Send({{kRows, json}});
    };
  }
  return RunSchedule(options, world, *job.store, events, Fail);
}

}  // namespace

absl::Status RunBenchmark(const BenchOptions& options,
                          const std::vector<std::string>& arguments,
                          const BenchEvents& events) {
  bool threads = true, mpi = false;
  for (const std::string& name : options.engines) {
    const BenchEngine engine = {options.device, name};
    TESSERA_RETURN_IF_ERROR(engine.Check(), FlagError("engine", name, _));
    threads = threads && engine.IsThreads();
    mpi = mpi || engine.IsMpi();
  }
  for (const int64_t world : options.worlds) {
    TESSERA_ASSIGN_OR_RETURN(
        const LaunchPlan plan,
        PlanFor(threads ? 1 : world, world, mpi, arguments));
    TESSERA_ASSIGN_OR_RETURN(const auto receiver, Receiver::Create(events));
    const auto outcome = Launch(plan, {.out_fd = receiver->fd()});
    receiver->Finish();
    TESSERA_RETURN_IF_ERROR(outcome.status());
    TESSERA_RETURN_IF_ERROR(StatusOf(*outcome, *receiver, mpi));
  }
  return absl::OkStatus();
}

std::optional<int> RunWorker(int argc, char** argv) {
  std::string_view first = argc > 1 ? argv[1] : "";
  int64_t world = 0;
  if (!absl::ConsumePrefix(&first, kWorkerArgument) ||
      !absl::SimpleAtoi(first, &world)) {
    return std::nullopt;
  }
  // Under mpirun the parent is mpirun, which dies with the benchmark.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  const absl::Status status = RunProcess(world, {argv + 2, argv + argc});
  if (!status.ok()) Fail(status);
  return 0;
}

}  // namespace tessera::tools
