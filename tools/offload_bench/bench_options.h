// OffloadBenchOptions: the command line of the benchmark.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/simulate_step.h"

namespace tessera::offload_bench {

// The parts, in the order in which they run.
inline constexpr std::array<std::string_view, 4> kParts = {
    "codecs", "optimizer", "file", "tiers"};

// cpu: the parts; cuda: copies between page-locked memory and a GPU; emulated:
// simulated training steps.
inline constexpr std::array<std::string_view, 3> kDevices = {"cpu", "cuda",
                                                             "emulated"};

struct OffloadBenchOptions {
  std::vector<std::string> parts = {};
  int64_t size = 0;  // Bytes of values: a multiple of 4096.
  std::vector<int64_t> threads = {};
  double seconds = 0;  // Per measurement.
  std::vector<std::string> codecs = {};
  std::string directory = ".";
  std::vector<int64_t> blocks = {};  // Bytes, ascending: multiples of 4096.
  int64_t depth = 32;                // Requests in flight, for tier and device.
  std::string device = "cpu";        // One of kDevices.
  TimeKind clock = TimeKind::kWall;
  StepModel step = {};
  tools::OutputFormat format = tools::OutputFormat::kText;
  bool quiet = false;
};

const tools::Tool& OffloadBenchTool();

// The values of the tool's flags. InvalidArgument with the flag, its value and
// the allowed values. --threads=auto goes up to `processors`.
absl::StatusOr<OffloadBenchOptions> OptionsFromFlags(int64_t processors);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
