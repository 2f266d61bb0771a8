#include "tools/comm_bench/comm_bench_main.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
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
#include "tools/cli/records.h"
#include "tools/cli/tool_registry.h"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/report.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/launcher.h"
#include "tools/launch/signals.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker=";

// A wrong result is a cause; the loss of another rank need not be.
int Severity(const absl::Status& status) {
  if (status.ok()) return 0;
  if (absl::IsInternal(status)) return 3;
  return absl::IsUnavailable(status) || absl::IsAborted(status) ? 1 : 2;
}

// Collects the lines that the processes of a job write.
struct Received {
  const Report& report;
  std::string where = {};   // The last progress.
  absl::Status error = {};  // The most severe one, the first of these.

  void Handle(std::string_view line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {  // Of a library.
      std::cerr << line;
    } else if (json.contains("code")) {
      const absl::Status next(static_cast<absl::StatusCode>(json["code"]),
                              std::string(json["message"]));
      if (Severity(next) > Severity(error)) error = next;
    } else {
      where = json.value("progress", where);
      report(json);
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

absl::Status RunPlan(const LaunchPlan& plan, bool mpi, const Report& report) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  Received received = {report};
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
  Send({{"code", status.raw_code()}, {"message", status.message()}});
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

// Runs the rank that this process is, or all ranks if they are threads. Without
// `world` their number is the launcher's.
absl::Status RunRank(const BenchOptions& options, std::optional<int64_t> world,
                     const Report& report,
                     const std::function<void(const absl::Status&)>& fail) {
  TESSERA_ASSIGN_OR_RETURN(const collectives::Job job,
                           collectives::JoinJob(LauncherVariable));
  return RunSchedule(options, world.value_or(job.world_size.value()), job,
                     report, fail);
}

// Runs in each process that RunBenchmark starts.
absl::Status RunProcess(int64_t world,
                        const std::vector<std::string>& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const BenchOptions options, ParseOptions(arguments));
  return RunRank(options, world, Send, Fail);
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

}  // namespace

absl::Status RunBenchmark(const BenchOptions& options,
                          const std::vector<std::string>& arguments,
                          const Report& report) {
  bool threads = true, mpi = false;
  for (const std::string& name : options.engines) {
    const BenchEngine engine = {options.device, name};
    TESSERA_RETURN_IF_ERROR(engine.Check(), FlagError("engine", name, _));
    threads = threads && engine.IsThreads();
    mpi = mpi || engine.IsMpi();
  }
  if (OuterLauncher().has_value()) {
    return RunRank(options, std::nullopt, report, FailLaunched);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  for (const int64_t world : options.worlds) {
    std::vector<std::string> worker = arguments;
    worker.insert(worker.begin(), absl::StrCat(kWorkerArgument, world));
    TESSERA_ASSIGN_OR_RETURN(LaunchPlan plan,
                             PlanProgram(threads ? 1 : world, mpi, program,
                                         OwnArguments(std::move(worker))));
    // Ranks bind themselves.
    plan.environment.push_back("OMPI_MCA_hwloc_base_binding_policy=none");
    plan.grace = absl::Milliseconds(500);
    TESSERA_RETURN_IF_ERROR(RunPlan(plan, mpi, report));
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
  PrepareProcess().IgnoreError();  // The benchmark has entered the directory.
  const absl::Status status = RunProcess(world, {argv + 2, argv + argc});
  if (!status.ok()) Fail(status);
  return 0;
}

int CommBenchMain(int argc, char** argv) {
  if (const auto code = RunWorker(argc, argv)) return *code;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  BenchOptions options;
  return RunTool(CommBenchTool(options), arguments, [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
    const auto launcher = OuterLauncher();
    const bool prints =
        !launcher.has_value() || launcher->rank == topology::Rank(0);
    RecordPrinter printer(options.format, "rows", std::cout);
    // A line that is overwritten.
    const bool is_shown =
        prints && !options.quiet && isatty(STDERR_FILENO) == 1;
    const auto show = [&](std::string_view text) {
      if (is_shown) std::cerr << "\r\x1b[K" << text.substr(0, 78) << std::flush;
    };
    Json last;
    const auto report = [&](const Json& line) {
      show(line.value("progress", ""));
      if (!line.contains("row")) return;
      printer.Print(line["row"], RowToText(line["row"], last));
      last = line["row"];
    };
    const absl::Status status = RunBenchmark(options, arguments, report);
    show("");
    TESSERA_RETURN_IF_ERROR(status);
    if (prints) printer.Finish();
    return absl::OkStatus();
  });
}

}  // namespace tessera::tools
