// OffloadBenchOptions: the parsed flags of the benchmark.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/simulate_step.h"

namespace tessera::offload_bench {

// The parts, in the order in which they run.
inline constexpr std::array<std::string_view, 5> kParts = {
    "codecs", "optimizer", "file", "tiers", "prefetch"};

// cpu: the parts; cuda: copies between page-locked memory and a GPU; emulated:
// simulated training steps.
inline constexpr std::array<std::string_view, 3> kDevices = {"cpu", "cuda",
                                                             "emulated"};

// The flags as given; lists are separated by commas.
struct OffloadBenchFlags {
  std::string what = "codecs,optimizer,file,tiers,prefetch";
  int64_t size = int64_t{64} << 20;
  std::string threads = "auto";
  double seconds = 0.5;
  std::string codecs = "all";
  std::string dir = ".";
  int64_t min_bytes = 64 << 10;
  int64_t max_bytes = 16 << 20;
  int64_t factor = 16;
  int64_t depth = 32;
  TimeKind clock = TimeKind::kWall;
  std::string device = "cpu";
  std::string pcie = "50GB/s";
  std::string device_memory = "3700GB/s";
  std::string host_memory = "100GB/s";
  int64_t layers = StepModel().layers;
  int64_t layer_parameters = StepModel().layer_parameters;
  double layer_ms = StepModel().layer_seconds * 1e3;
};

struct OffloadBenchOptions {
  std::vector<std::string> parts;
  int64_t size = 0;  // Bytes of values: a multiple of 4096.
  std::vector<int64_t> threads;
  double seconds = 0;  // Per measurement.
  std::vector<std::string> codecs;
  std::string directory;
  std::vector<int64_t> blocks;  // Bytes, ascending: multiples of 4096.
  int64_t depth = 0;
  std::string device;  // One of kDevices.
  TimeKind clock = TimeKind::kWall;
  StepModel step;
};

// InvalidArgument with the flag, its value and the allowed values.
// --threads=auto goes up to `processors`.
absl::StatusOr<OffloadBenchOptions> ParseOffloadBenchFlags(
    const OffloadBenchFlags& flags, int64_t processors);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_BENCH_OPTIONS_H_
