#include "tools/comm_bench/comm_bench_main.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/report.h"
#include "tools/comm_bench/worker.h"
#include "tools/launch/signals.h"

ABSL_FLAG(tessera::ByteSize, min_bytes, tessera::ByteSize(8),
          "the smallest message; -b");
ABSL_FLAG(tessera::ByteSize, max_bytes, tessera::ByteSize(64 << 20),
          "the largest message; -e");
ABSL_FLAG(int64_t, factor, 4, "factor from each size to the next; -f");
ABSL_FLAG(std::string, device, "cpu",
          "whose memory the buffers are: cpu; cuda, of GPUs; or emulated, "
          "which checks results, but whose times say nothing about a GPU");
ABSL_FLAG(std::string, engine, "",
          "engines to compare, such as shared_memory,mpi,gloo,in_process, or "
          "with --device=cuda cuda,nccl; ratio compares with the first; "
          "default: shared_memory, or cuda on a device");
ABSL_FLAG(std::string, np, "2", "numbers of ranks, such as 2,4,8");
ABSL_FLAG(std::string, op, "all_reduce",
          "collectives, such as all_reduce,all_gather, or all");
ABSL_FLAG(std::string, algorithm, "engine",
          "engine (its own), adaptive, names such as ring,tree, or all");
ABSL_FLAG(bool, registered, false, "uses buffers from AllocateShared");
ABSL_FLAG(std::string, dtype, "f32", "element types, such as f32,bf16; -d");
ABSL_FLAG(std::string, reduction, "sum",
          "sum, average, product, min, max, scaled_sum, bit_and, bit_or or "
          "bit_xor; -o");
ABSL_FLAG(int64_t, iterations, 0,
          "timed iterations of each row; 0: as many as fit into 0.3 s; -n");
ABSL_FLAG(int64_t, warmup, 3, "iterations before the timed ones; -w");
ABSL_FLAG(int64_t, group_size, 0,
          "treats every group of that many consecutive ranks as a host; "
          "0: all ranks are on one host");
ABSL_FLAG(bool, bind, true,
          "binds each rank of every engine to its share of the processors, "
          "round-robin if there are fewer than ranks");
ABSL_FLAG(bool, in_place, false, "uses the same memory for input and output");
ABSL_FLAG(bool, reproducible, false,
          "also measures reductions in reproducible mode, in separate rows");
ABSL_FLAG(bool, overlap, false,
          "also measures how much of an asynchronous operation overlaps with "
          "computation");
ABSL_FLAG(bool, regret, false,
          "times every algorithm and reports how much slower the adaptive "
          "choice is than the fastest");
ABSL_FLAG(bool, check, true, "checks results; a wrong result ends the run; -c");
ABSL_FLAG(bool, bound, true,
          "also measures the memory-traffic bound; share is the bound over the "
          "time");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText,
          "text, json or csv; ratio is a row's time over that of the first "
          "engine and algorithm of its case: above 1 is slower than the first");
ABSL_FLAG(std::string, svg, "", "also plots time against size into this file");
ABSL_FLAG(bool, quiet, false, "no progress and no plot on a terminal");

namespace tessera::tools {
namespace {

BenchFlags FlagValues() {
  BenchFlags flags;
  flags.min_bytes = absl::GetFlag(FLAGS_min_bytes).bytes();
  flags.max_bytes = absl::GetFlag(FLAGS_max_bytes).bytes();
  flags.factor = absl::GetFlag(FLAGS_factor);
  flags.device = absl::GetFlag(FLAGS_device);
  flags.engine = absl::GetFlag(FLAGS_engine);
  flags.np = absl::GetFlag(FLAGS_np);
  flags.op = absl::GetFlag(FLAGS_op);
  flags.algorithm = absl::GetFlag(FLAGS_algorithm);
  flags.dtype = absl::GetFlag(FLAGS_dtype);
  flags.reduction = absl::GetFlag(FLAGS_reduction);
  flags.iterations = absl::GetFlag(FLAGS_iterations);
  flags.warmup = absl::GetFlag(FLAGS_warmup);
  flags.group_size = absl::GetFlag(FLAGS_group_size);
  flags.bind = absl::GetFlag(FLAGS_bind);
  flags.registered = absl::GetFlag(FLAGS_registered);
  flags.in_place = absl::GetFlag(FLAGS_in_place);
  flags.reproducible = absl::GetFlag(FLAGS_reproducible);
  flags.overlap = absl::GetFlag(FLAGS_overlap);
  flags.regret = absl::GetFlag(FLAGS_regret);
  flags.check = absl::GetFlag(FLAGS_check);
  flags.bound = absl::GetFlag(FLAGS_bound);
  if (flags.regret && flags.algorithm == "engine") flags.algorithm = "all";
  return flags;
}

// A line that is overwritten, if standard error is a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::ostream& err)
      : err_(err), shown_(!absl::GetFlag(FLAGS_quiet) && isatty(2) == 1) {}
  ~ProgressLine() { Clear(); }

  void Show(const std::string& text) {
    if (!shown_) return;
    constexpr size_t kWidth = 78;
    err_ << "\r\x1b[K" << text.substr(0, kWidth) << std::flush;
  }
  void Clear() {
    if (shown_) err_ << "\r\x1b[K" << std::flush;
  }

 private:
  std::ostream& err_;
  bool shown_;
};

// Checked before hours of measurements.
absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "."
                                : slash == 0               ? "/"
                                             : path.substr(0, slash);
  if (access(directory.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("--svg=", path, ": cannot write to ", directory));
}

const Tool& CommBenchTool() {
  static const Tool* const tool = new Tool{
      .name = "comm_bench",
      .summary =
          "Times collectives on several engines and algorithms side by "
          "side, and checks their results.",
      .example = "-b 8 -e 64M -f 4 --engine=shared_memory,mpi --np=2,4",
      .flags = {"min_bytes",    "max_bytes",  "factor",     "device",
                "engine",       "np",         "op",         "algorithm",
                "dtype",        "reduction",  "registered", "in_place",
                "reproducible", "group_size", "bind",       "iterations",
                "warmup",       "overlap",    "regret",     "check",
                "bound",        "format",     "svg",        "quiet"}};
  return *tool;
}

// Data goes to `out`, progress to `err`.
absl::Status RunCommBench(const EngineCatalogue& catalogue, std::ostream& out,
                          std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(const BenchOptions options,
                           ParseBenchFlags(FlagValues()));
  const std::string svg = absl::GetFlag(FLAGS_svg);
  TESSERA_RETURN_IF_ERROR(CheckWritable(svg));
  TESSERA_ASSIGN_OR_RETURN(const auto signals, SignalWatch::Create());
  const OutputFormat format = absl::GetFlag(FLAGS_format);
  RowPrinter printer(format, out);
  ProgressLine progress(err);
  std::vector<Row> rows;
  BenchEvents events;
  events.on_progress = [&](const std::string& text) { progress.Show(text); };
  events.on_case = [&](const std::vector<Row>& finished) {
    progress.Clear();
    printer.Print(finished);
    rows.insert(rows.end(), finished.begin(), finished.end());
  };
  TESSERA_RETURN_IF_ERROR(
      RunBenchmark(options, catalogue, signals.get(), events));
  progress.Clear();
  printer.Finish();
  if (format == OutputFormat::kText && isatty(1) == 1 &&
      !absl::GetFlag(FLAGS_quiet)) {
    out << PlotText(rows);
  }
  if (svg.empty()) return absl::OkStatus();
  return Annotate(WriteFile(svg, PlotSvg(rows)), absl::StrCat("--svg=", svg));
}

}  // namespace

int CommBenchMain(int argc, char** argv, const EngineCatalogue& catalogue) {
  if (IsWorker(argc, argv)) return RunWorker(argc, argv, catalogue);
  const std::vector<std::string> arguments =
      LongArguments(std::vector<std::string>(argv + 1, argv + argc));
  const int code =
      RunTool(CommBenchTool(), arguments, std::cout, std::cerr,
              [&] { return RunCommBench(catalogue, std::cout, std::cerr); });
  std::cout.flush();
  if (code == 0 && !std::cout) {
    std::cerr << "comm_bench: standard output could not be written\n";
    return 1;
  }
  return code;
}

}  // namespace tessera::tools
