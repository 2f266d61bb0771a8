#include "tools/comm_bench/job.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_rank.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/launcher.h"
#include "tools/launch/signals.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker=";

// The keys of lines.
constexpr char kProgress[] = "progress";
constexpr char kRow[] = "row";
constexpr char kText[] = "text";
constexpr char kCode[] = "code";
constexpr char kMessage[] = "message";

// A wrong result is a cause; the loss of another rank need not be.
int Severity(const absl::Status& status) {
  if (status.ok()) return 0;
  if (absl::IsInternal(status)) return 3;
  return absl::IsUnavailable(status) || absl::IsAborted(status) ? 1 : 2;
}

// Collects the lines that the processes of a job write.
struct Received {
  const BenchEvents& events;
  std::string where = {};   // The last progress.
  absl::Status error = {};  // The most severe one, the first of these.

  void Handle(std::string_view line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {  // Of a library.
      std::cerr << line;
    } else if (json.contains(kProgress)) {
      where = json[kProgress];
      events.on_progress(where);
    } else if (json.contains(kRow)) {
      events.on_row(json[kRow], json[kText]);
    } else if (json.contains(kCode)) {
      const absl::Status next(static_cast<absl::StatusCode>(json[kCode]),
                              std::string(json[kMessage]));
      if (Severity(next) > Severity(error)) error = next;
    }
  }

  // Handles lines until no process can write any more.
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
};

// Why the run failed.
absl::Status StatusOf(const LaunchOutcome& outcome, const Received& received,
                      bool mpi) {
  const bool died = outcome.failure.has_value() && outcome.failure->by_signal;
  if (!outcome.signal.has_value() && !received.error.ok() &&
      (!died || absl::IsInternal(received.error))) {
    return received.error;
  }
  if (mpi && outcome.failure.has_value()) {
    return absl::AbortedError(
        absl::StrCat(received.where, ": mpirun exited with code ",
                     outcome.failure->code, "; its messages name the rank"));
  }
  return Annotate(outcome.ToStatus(), received.where);
}

absl::Status RunPlan(const LaunchPlan& plan, bool mpi,
                     const BenchEvents& events) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  Received received = {events};
  std::thread reader =
      StartThreadWithoutSignals([&] { received.Read(ends[0]); });
  const auto outcome = Launch(plan, {.out_fd = ends[1]});
  close(ends[1]);
  reader.join();
  TESSERA_RETURN_IF_ERROR(outcome.status());
  return StatusOf(*outcome, received, mpi);
}

// Sends a line to the parent. A single write, because threads may fail
// together.
void Send(const Json& json) {
  const std::string line = DumpJson(json) + "\n";
  // If the parent is gone, so is this process.
  [[maybe_unused]] const auto written =
      write(STDOUT_FILENO, line.data(), line.size());
}

// Ends this process; the launcher ends the others.
void Fail(const absl::Status& status) {
  Send({{kCode, status.raw_code()}, {kMessage, status.message()}});
  _exit(1);
}

// The variables of mpirun, whose ranks inherit those of its own launcher, or of
// the launcher.
std::optional<std::string> LauncherVariable(std::string_view name) {
  const auto lookup = collectives::ProcessEnvironment();
  const bool is_mpi = lookup("OMPI_COMM_WORLD_RANK") || lookup("PMI_RANK");
  if (is_mpi && (name == "RANK" || name == "LOCAL_RANK")) return std::nullopt;
  return lookup(name);
}

// Runs in each process that RunBenchmark starts; sends rank 0's rows.
absl::Status RunProcess(int64_t world,
                        const std::vector<std::string>& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const BenchOptions options, ParseOptions(arguments));
  TESSERA_ASSIGN_OR_RETURN(const collectives::Job job,
                           collectives::JoinJob(LauncherVariable));
  const bool sends = job.rank == topology::Rank(0);
  const BenchEvents events = {
      .on_row =
          [=](const Json& row, const std::string& text) {
            if (sends) Send({{kRow, row}, {kText, text}});
          },
      .on_progress =
          [=](const std::string& where) {
            if (sends) Send({{kProgress, where}});
          }};
  return RunSchedule(options, {world, job.rank.value(), world}, *job.store,
                     events, Fail);
}

// The environment of a rank that another launcher started.
std::optional<topology::LauncherEnvironment> OuterLauncher() {
  const auto found = topology::ReadLauncherEnvironment(LauncherVariable);
  if (!found.ok() || found->world_size.value() == 1) return std::nullopt;
  return *found;
}

// Ends this process; its launcher ends the others.
void FailLaunched(const absl::Status& status) {
  std::cerr << "comm_bench: " << status.message() << std::endl;
  _exit(1);
}

// Runs the rank that this process is.
absl::Status RunLaunched(const BenchOptions& options,
                         const BenchEvents& events) {
  TESSERA_ASSIGN_OR_RETURN(const collectives::Job job,
                           collectives::JoinJob(LauncherVariable));
  const int64_t world = job.world_size.value();
  const BenchPlace place = {world, job.environment.local_rank,
                            job.environment.local_world_size.value_or(world)};
  return RunSchedule(options, place, *job.store, events, FailLaunched);
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
  if (OuterLauncher().has_value()) return RunLaunched(options, events);
  TESSERA_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  for (const int64_t world : options.worlds) {
    std::vector<std::string> worker = arguments;
    worker.insert(worker.begin(), absl::StrCat(kWorkerArgument, world));
    TESSERA_ASSIGN_OR_RETURN(
        LaunchPlan plan,
        PlanProgram(threads ? 1 : world, mpi, program, std::move(worker)));
    // Ranks bind themselves.
    plan.environment.push_back("OMPI_MCA_hwloc_base_binding_policy=none");
    plan.grace = absl::Milliseconds(500);
    TESSERA_RETURN_IF_ERROR(RunPlan(plan, mpi, events));
  }
  return absl::OkStatus();
}

bool PrintsRows() {
  const auto launcher = OuterLauncher();
  return !launcher.has_value() || launcher->rank == topology::Rank(0);
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
  PrepareProcess().IgnoreError();  // The benchmark has entered the directory.
  const absl::Status status = RunProcess(world, {argv + 2, argv + argc});
  if (!status.ok()) Fail(status);
  return 0;
}

}  // namespace tessera::tools
