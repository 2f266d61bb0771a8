// The offload_bench tool: codecs, tiers and CPU optimizers against their
// bandwidth limits.
#include <cstdint>
#include <iostream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "base/byte_size.h"
#include "base/device/cuda_device.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/measure_device.h"
#include "tools/offload_bench/measure_file.h"
#include "tools/offload_bench/measure_memory.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/simulate_step.h"

using tessera::offload_bench::OffloadBenchFlags;

ABSL_FLAG(std::string, what, OffloadBenchFlags().what,
          "parts to measure, separated by commas");
ABSL_FLAG(tessera::ByteSize, size, tessera::ByteSize(OffloadBenchFlags().size),
          "bytes of values, and of an optimizer's f32 parameters");
ABSL_FLAG(std::string, threads, OffloadBenchFlags().threads,
          "threads of the optimizers, such as 1,2; auto: 1, 2, 4 ... up to the "
          "processors");
ABSL_FLAG(double, seconds, OffloadBenchFlags().seconds,
          "approximate duration of each measurement, including its limit");
ABSL_FLAG(tessera::offload_bench::TimeKind, clock, OffloadBenchFlags().clock,
          "clock for codecs, optimizer and tiers: wall, or processor, which "
          "excludes the time of other processes; file and prefetch always use "
          "wall");
ABSL_FLAG(std::string, codecs, OffloadBenchFlags().codecs,
          "codecs to measure, such as lossless,int8, or all");
ABSL_FLAG(
    std::string, dir, OffloadBenchFlags().dir,
    "directory for the files of file and prefetch, on the device to measure");
ABSL_FLAG(tessera::ByteSize, min_bytes,
          tessera::ByteSize(OffloadBenchFlags().min_bytes),
          "the smallest block of file, tiers and prefetch; -b");
ABSL_FLAG(tessera::ByteSize, max_bytes,
          tessera::ByteSize(OffloadBenchFlags().max_bytes),
          "the largest block; -e");
ABSL_FLAG(int64_t, factor, OffloadBenchFlags().factor,
          "factor from each size to the next; -f");
ABSL_FLAG(int64_t, depth, OffloadBenchFlags().depth,
          "requests in flight, for the file tier and the raw device");
ABSL_FLAG(std::string, device, OffloadBenchFlags().device,
          "cpu: the parts of --what; cuda: copies between page-locked memory "
          "and a GPU; emulated: the simulated time of training steps with "
          "tiers");
ABSL_FLAG(std::string, pcie, OffloadBenchFlags().pcie,
          "rate of the link to the device, each way, such as 50GB/s");
ABSL_FLAG(std::string, device_memory, OffloadBenchFlags().device_memory,
          "rate of the simulated device's memory");
ABSL_FLAG(std::string, host_memory, OffloadBenchFlags().host_memory,
          "rate at which the host's optimizer moves bytes in a simulated step");
ABSL_FLAG(int64_t, layers, OffloadBenchFlags().layers,
          "equal layers of the simulated model");
ABSL_FLAG(int64_t, layer_parameters, OffloadBenchFlags().layer_parameters,
          "parameters of a simulated layer, in bf16");
ABSL_FLAG(double, layer_ms, OffloadBenchFlags().layer_ms,
          "milliseconds of a simulated layer's forward and backward pass");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText,
          "text, json or csv; share is the limit's time over the measured one: "
          "1 is as fast as the limit");
ABSL_FLAG(bool, quiet, false, "no progress on stderr");

namespace tessera::offload_bench {
namespace {

OffloadBenchFlags FlagValues() {
  OffloadBenchFlags flags;
  flags.what = absl::GetFlag(FLAGS_what);
  flags.size = absl::GetFlag(FLAGS_size).bytes();
  flags.threads = absl::GetFlag(FLAGS_threads);
  flags.seconds = absl::GetFlag(FLAGS_seconds);
  flags.codecs = absl::GetFlag(FLAGS_codecs);
  flags.dir = absl::GetFlag(FLAGS_dir);
  flags.min_bytes = absl::GetFlag(FLAGS_min_bytes).bytes();
  flags.max_bytes = absl::GetFlag(FLAGS_max_bytes).bytes();
  flags.factor = absl::GetFlag(FLAGS_factor);
  flags.depth = absl::GetFlag(FLAGS_depth);
  flags.clock = absl::GetFlag(FLAGS_clock);
  flags.device = absl::GetFlag(FLAGS_device);
  flags.pcie = absl::GetFlag(FLAGS_pcie);
  flags.device_memory = absl::GetFlag(FLAGS_device_memory);
  flags.host_memory = absl::GetFlag(FLAGS_host_memory);
  flags.layers = absl::GetFlag(FLAGS_layers);
  flags.layer_parameters = absl::GetFlag(FLAGS_layer_parameters);
  flags.layer_ms = absl::GetFlag(FLAGS_layer_ms);
  return flags;
}

absl::Status MeasurePart(const std::string& part, const OffloadBenchOptions& o,
                         const Sink& sink) {
  const TimeKind time = o.clock;
  if (part == "codecs") {
    return MeasureCodecs({o.codecs, o.size, o.seconds, time}, sink);
  }
  if (part == "optimizer") {
    return MeasureOptimizers({o.size, o.threads, o.seconds, time}, sink);
  }
  if (part == "file") {
    return MeasureFileTier({o.directory, o.size, o.blocks, o.depth, o.seconds},
                           sink);
  }
  if (part == "tiers")
    return MeasureTiers({o.size, o.blocks, o.seconds, time}, sink);
  return MeasurePrefetch({o.directory, o.size, o.blocks, o.depth, o.seconds},
                         sink);
}

const tools::Tool& OffloadBenchTool() {
  static const tools::Tool* const tool = new tools::Tool{
      .name = "offload_bench",
      .summary =
          "Times codecs, CPU optimizers, memory tiers and prefetching, each "
          "against a physical limit that is measured alternately.",
      .example = "--what=codecs,optimizer --size=64M --threads=1,2",
      .flags = {"what",
                "size",
                "threads",
                "seconds",
                "clock",
                "codecs",
                "dir",
                "min_bytes",
                "max_bytes",
                "factor",
                "depth",
                "device",
                "pcie",
                "device_memory",
                "host_memory",
                "layers",
                "layer_parameters",
                "layer_ms",
                "format",
                "quiet"}};
  return *tool;
}

absl::Status RunCopies(const OffloadBenchOptions& o, std::ostream& out,
                       std::ostream& err) {
  constexpr std::string_view kFlag = "--device=cuda";
  TESSERA_RETURN_IF_ERROR(FindCudaDevices().status(), Annotate(_, kFlag));
  TESSERA_ASSIGN_OR_RETURN(const auto device, CudaDevice::Create(),
                           Annotate(_, kFlag));
  if (!absl::GetFlag(FLAGS_quiet)) {
    err << "offload_bench: measuring copies of " << device->name() << "\n"
        << std::flush;
  }
  MeasurementPrinter printer(absl::GetFlag(FLAGS_format), out);
  TESSERA_RETURN_IF_ERROR(MeasureCopies(
      *device, {o.size, o.blocks, o.seconds, o.step.pcie_bytes_per_second},
      [&](const Measurement& m) { printer.Print(m); }));
  printer.Finish();
  return absl::OkStatus();
}

absl::Status RunSteps(const OffloadBenchOptions& options, std::ostream& out,
                      std::ostream& err) {
  if (!absl::GetFlag(FLAGS_quiet)) {
    const StepModel& model = options.step;
    err << "offload_bench: simulating steps of " << model.layers
        << " layers with " << model.layer_parameters << " parameters and "
        << model.layer_seconds * 1e3 << " ms each; PCIe "
        << model.pcie_bytes_per_second / 1e9 << ", device memory "
        << model.memory_bytes_per_second / 1e9 << ", host memory "
        << model.host_bytes_per_second / 1e9 << " GB/s\n"
        << std::flush;
  }
  StepPrinter printer(absl::GetFlag(FLAGS_format), out);
  for (const Offload& offload : kOffloads) {
    TESSERA_ASSIGN_OR_RETURN(const SimulatedStep step,
                             SimulateStep(options.step, offload));
    printer.Print(offload, step);
  }
  printer.Finish();
  return absl::OkStatus();
}

absl::Status RunOffloadBench(std::ostream& out, std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(
      const OffloadBenchOptions options,
      ParseOffloadBenchFlags(FlagValues(), AvailableProcessors()));
  if (options.device == "cuda") return RunCopies(options, out, err);
  if (options.device == "emulated") return RunSteps(options, out, err);
  MeasurementPrinter printer(absl::GetFlag(FLAGS_format), out);
  for (const std::string& part : options.parts) {
    if (!absl::GetFlag(FLAGS_quiet)) {
      err << "offload_bench: measuring " << part << "\n" << std::flush;
    }
    TESSERA_RETURN_IF_ERROR(MeasurePart(
        part, options, [&](const Measurement& m) { printer.Print(m); }));
  }
  printer.Finish();
  return absl::OkStatus();
}

int OffloadBenchMain(int argc, char** argv) {
  return tools::RunTool(OffloadBenchTool(),
                        tools::LongArguments({argv + 1, argv + argc}),
                        [] { return RunOffloadBench(std::cout, std::cerr); });
}

}  // namespace
}  // namespace tessera::offload_bench

int main(int argc, char** argv) {
  return tessera::offload_bench::OffloadBenchMain(argc, argv);
}
