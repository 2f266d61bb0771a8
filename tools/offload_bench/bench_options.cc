#include "tools/offload_bench/bench_options.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/typed_flags.h"

namespace tessera::offload_bench {
namespace {

using tools::FieldFlag;
using tools::Flag;
using tools::FlagError;
using tools::ParsedFlag;
using tools::RangeFlag;

constexpr int64_t kUnit = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 38;
constexpr int64_t kLeastRate = 1'000'000;  // Bytes a second.
// Simulating a step takes time with the square of the layers: 256 of them take
// some 20 s.
constexpr int64_t kMostLayers = 256;

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const ByteSize size, ParseByteSize(text));
  const int64_t bytes = size.bytes();
  if (bytes >= kUnit && bytes <= kMostBytes && bytes % kUnit == 0) return bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("a multiple of 4096 bytes up to ",
                   ByteSize(kMostBytes).ToString(), " is needed"));
}

absl::Status CheckSizes(const OffloadBenchOptions& options) {
  if (!(options.seconds >= 0 && options.seconds <= 3600)) {
    return FlagError("seconds", absl::StrCat(options.seconds),
                     "a number from 0 to 3600 is needed");
  }
  if (options.max_bytes > options.size) {
    return FlagError(
        "max_bytes", ByteSize(options.max_bytes).ToString(),
        absl::StrCat("at most --size=", ByteSize(options.size).ToString()));
  }
  if (options.directory.empty()) {
    return FlagError("dir", "", "a writable directory is needed");
  }
  return absl::OkStatus();
}

// Flags, and the devices that use them.
struct DeviceFlags {
  std::vector<std::string_view> names;
  std::vector<std::string_view> devices;
};

absl::Status CheckDevice(const OffloadBenchOptions& options) {
  const std::string& device = options.device;
  if (std::find(kDevices.begin(), kDevices.end(), device) == kDevices.end()) {
    return FlagError(
        "device", device,
        absl::StrCat("one of ", absl::StrJoin(kDevices, ", "), " is needed"));
  }
  const DeviceFlags all[] = {
      {{"dir", "depth"}, {"cpu"}},
      {{"size", "seconds", "min_bytes", "max_bytes", "factor"},
       {"cpu", "cuda"}},
      {{"pcie"}, {"cuda", "emulated"}},
      {{"device_memory", "host_memory", "layers", "layer_parameters",
        "layer_ms"},
       {"emulated"}}};
  for (const auto& [names, devices] : all) {
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      continue;
    }
    for (const std::string_view name : names) {
      if (!options.given.contains(name)) continue;
      return FlagError(
          "device", device,
          absl::StrCat("--", name,
                       " has no effect with it; leave it out, or use "
                       "--device=",
                       absl::StrJoin(devices, " or --device=")));
    }
  }
  return absl::OkStatus();
}

// "50GB/s": bytes a second.
absl::StatusOr<double> ParseRate(std::string_view text) {
  absl::ConsumeSuffix(&text, "/s");
  const absl::StatusOr<ByteSize> parsed = ParseByteSize(text);
  if (parsed.ok() && parsed->bytes() >= kLeastRate) {
    return static_cast<double>(parsed->bytes());
  }
  return absl::InvalidArgumentError(
      "a rate such as 50GB/s, at least 1MB/s, is needed");
}

absl::StatusOr<double> ParseLayerSeconds(std::string_view text) {
  double layer_ms = 0;
  if (absl::SimpleAtod(text, &layer_ms) && layer_ms > 0 && layer_ms <= 1e6) {
    return layer_ms * 1e-3;
  }
  return absl::InvalidArgumentError(
      "a number above 0, up to 1000000, is needed");
}

std::vector<Flag> Flags(OffloadBenchOptions& o) {
  return {
      ParsedFlag("size", "bytes of the blocks of a measurement", "64MiB",
                 o.size, ParseBytes),
      FieldFlag("seconds",
                "approximate duration of each measurement, including its limit",
                o.seconds),
      FieldFlag("dir", "directory for the files, on the device to measure",
                o.directory),
      ParsedFlag("min_bytes", "the smallest block; -b", "64KiB", o.min_bytes,
                 ParseBytes),
      ParsedFlag("max_bytes", "the largest block; -e", "16MiB", o.max_bytes,
                 ParseBytes),
      RangeFlag("factor", "factor from each block size to the next; -f",
                o.factor, 2, 1 << 20),
      RangeFlag("depth", "requests in flight, for tier and device", o.depth, 1,
                4096),
      FieldFlag("device",
                "cpu: the file tier; cuda: copies to and from a GPU; "
                "emulated: simulated training steps with offload",
                o.device),
      ParsedFlag("pcie",
                 "rate of the link to the device, each way, such as 50GB/s",
                 "50GB/s", o.step.pcie_bytes_per_second, ParseRate),
      ParsedFlag("device_memory", "rate of the simulated device's memory",
                 "3700GB/s", o.step.memory_bytes_per_second, ParseRate),
      ParsedFlag("host_memory",
                 "rate at which the host's optimizer moves bytes in a "
                 "simulated step",
                 "100GB/s", o.step.host_bytes_per_second, ParseRate),
      RangeFlag("layers", "equal layers of the simulated model", o.step.layers,
                1, kMostLayers),
      RangeFlag("layer_parameters", "parameters of a simulated layer, in bf16",
                o.step.layer_parameters, 4, int64_t{1'000'000'000'000}),
      ParsedFlag(
          "layer_ms",
          "milliseconds of a simulated layer's forward and backward pass",
          absl::StrCat(o.step.layer_seconds * 1e3), o.step.layer_seconds,
          ParseLayerSeconds),
      FieldFlag("format",
                "text, json or csv; share is the limit's time over the "
                "measured one: 1 is as fast as the limit",
                o.format),
      FieldFlag("quiet", "no progress on stderr", o.quiet)};
}

}  // namespace

tools::Tool OffloadBenchTool(OffloadBenchOptions& options) {
  std::vector<Flag> flags = Flags(options);
  for (Flag& flag : flags) {
    flag.set = [&options, name = flag.name,
                set = flag.set](std::string_view text) {
      options.given.emplace(name);
      return set(text);
    };
  }
  return {
      .name = "offload_bench",
      .summary =
          "Times the file tier and copies to a GPU against their physical "
          "limits, and simulates training steps with offload.",
      .example = "--dir=/scratch --size=1G -b 64K -e 64M",
      .flags = std::move(flags),
      .short_flags = {{'b', "min_bytes"}, {'e', "max_bytes"}, {'f', "factor"}}};
}

absl::Status CompleteOptions(OffloadBenchOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckDevice(options));
  TESSERA_ASSIGN_OR_RETURN(
      options.blocks, tools::GrowingSizes(options.min_bytes, options.max_bytes,
                                          options.factor));
  return CheckSizes(options);
}

}  // namespace tessera::offload_bench
