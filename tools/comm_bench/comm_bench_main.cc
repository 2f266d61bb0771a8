#include "tools/comm_bench/comm_bench_main.h"

#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/report.h"

namespace tessera::tools {
namespace {

// A line that is overwritten, if standard error is a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : shown_(!quiet && isatty(2) == 1) {}
  ~ProgressLine() { Show(""); }

  void Show(const std::string& text) {
    constexpr size_t kWidth = 78;
    if (shown_) std::cerr << "\r\x1b[K" << text.substr(0, kWidth) << std::flush;
  }

 private:
  const bool shown_;
};

}  // namespace

int CommBenchMain(int argc, char** argv) {
  if (const auto code = RunWorker(argc, argv)) return *code;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  BenchOptions options;
  return RunTool(CommBenchTool(options), arguments, [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
    RowPrinter printer(options.format, std::cout);
    ProgressLine progress(options.quiet);
    BenchEvents events;
    events.on_progress = [&](const std::string& where) {
      progress.Show(where);
    };
    events.on_case = [&](const std::vector<Row>& finished) {
      progress.Show("");
      printer.Print(finished);
    };
    TESSERA_RETURN_IF_ERROR(RunBenchmark(options, arguments, events));
    printer.Finish();
    return absl::OkStatus();
  });
}

}  // namespace tessera::tools
