// The offload_bench tool: the file tier and copies to a GPU against their
// bandwidth limits, and simulated training steps with offload.
#include <iostream>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_device.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/measure.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/simulate_step.h"

namespace tessera::offload_bench {
namespace {

void Announce(const OffloadBenchOptions& options, std::string_view what) {
  if (options.quiet) return;
  std::cerr << "offload_bench: " << what << "\n" << std::flush;
}

absl::Status RunFiles(const OffloadBenchOptions& options) {
  Announce(options, "measuring files");
  MeasurementPrinter printer(options.format, std::cout);
  TESSERA_RETURN_IF_ERROR(MeasureFileTier(
      options, [&](const Measurement& m) { printer.Print(m); }));
  printer.Finish();
  return absl::OkStatus();
}

absl::Status RunCopies(const OffloadBenchOptions& options) {
  constexpr std::string_view kFlag = "--device=cuda";
  TESSERA_RETURN_IF_ERROR(FindCudaDevices().status(), Annotate(_, kFlag));
  TESSERA_ASSIGN_OR_RETURN(const auto device, CudaDevice::Create(),
                           Annotate(_, kFlag));
  Announce(options, absl::StrCat("measuring copies of ", device->name()));
  MeasurementPrinter printer(options.format, std::cout);
  TESSERA_RETURN_IF_ERROR(MeasureCopies(
      *device, options, [&](const Measurement& m) { printer.Print(m); }));
  printer.Finish();
  return absl::OkStatus();
}

absl::Status RunSteps(const OffloadBenchOptions& options) {
  const StepModel& model = options.step;
  Announce(options,
           absl::StrCat("simulating steps of ", model.layers, " layers with ",
                        model.layer_parameters, " parameters and ",
                        model.layer_seconds * 1e3, " ms each; PCIe ",
                        model.pcie_bytes_per_second / 1e9, ", device memory ",
                        model.memory_bytes_per_second / 1e9, ", host memory ",
                        model.host_bytes_per_second / 1e9, " GB/s"));
  StepPrinter printer(options.format, std::cout);
  for (const Offload& offload : kOffloads) {
    TESSERA_ASSIGN_OR_RETURN(const SimulatedStep step,
                             SimulateStep(model, offload));
    printer.Print(offload, step);
  }
  printer.Finish();
  return absl::OkStatus();
}

absl::Status RunOffloadBench(OffloadBenchOptions& options) {
  TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
  if (options.device == "cuda") return RunCopies(options);
  if (options.device == "emulated") return RunSteps(options);
  return RunFiles(options);
}

}  // namespace
}  // namespace tessera::offload_bench

int main(int argc, char** argv) {
  using namespace tessera::offload_bench;
  OffloadBenchOptions options;
  return tessera::tools::RunTool(OffloadBenchTool(options), argc, argv,
                                 [&] { return RunOffloadBench(options); });
}
