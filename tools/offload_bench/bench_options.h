// OffloadBenchOptions: the command line of the benchmark.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tools/cli/cli.h"
#include "tools/offload_bench/simulate_step.h"

namespace tessera::offload_bench {

// cpu: the file tier; cuda: copies between page-locked memory and a GPU;
// emulated: simulated training steps.
inline constexpr std::array<std::string_view, 3> kDevices = {"cpu", "cuda",
                                                             "emulated"};

struct OffloadBenchOptions {
  int64_t size = 64 << 20;  // Bytes of values: a multiple of 4096.
  double seconds = 0.5;     // Per measurement.
  std::string directory = ".";
  int64_t min_bytes = 64 << 10;
  int64_t max_bytes = 16 << 20;
  int64_t factor = 16;
  std::vector<int64_t> blocks = {};  // Bytes, ascending: multiples of 4096.
  int64_t depth = 32;                // Requests in flight, for tier and device.
  std::string device = "cpu";        // One of kDevices.
  StepModel step = {};
  tools::OutputFormat format = tools::OutputFormat::kText;
  bool quiet = false;
  std::set<std::string_view> given = {};  // The names of flags.
};

// The tool, whose flags set the fields of `options`, which must outlive it.
tools::Tool OffloadBenchTool(OffloadBenchOptions& options);

// Checks the fields and sets blocks. InvalidArgument with the flag, its value
// and the allowed values.
absl::Status CompleteOptions(OffloadBenchOptions& options);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
