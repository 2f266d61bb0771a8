#include "tools/offload_bench/bench_options.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/nearest_name.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "tools/cli/cli.h"

namespace tessera::offload_bench {
namespace {

constexpr int64_t kUnit = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 38;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostDepth = 4096;
constexpr double kMostSeconds = 3600;
constexpr int64_t kLeastRate = 1'000'000;  // Bytes a second.
// Simulating a step takes time with the square of the layers: 256 of them take
// some 20 s.
constexpr int64_t kMostLayers = 256;

absl::Status Refuse(std::string_view flag, std::string_view value,
                    std::string_view why) {
  return tools::FlagError(flag, value, absl::InvalidArgumentError(why));
}

absl::Status CheckBytes(std::string_view flag, int64_t bytes) {
  if (bytes >= kUnit && bytes <= kMostBytes && bytes % kUnit == 0) {
    return absl::OkStatus();
  }
  return Refuse(flag, ByteSize(bytes).ToString(),
                absl::StrCat("a multiple of 4096 bytes up to ",
                             ByteSize(kMostBytes).ToString(), " is needed"));
}

absl::Status CheckNumber(std::string_view flag, int64_t value, int64_t lowest,
                         int64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return Refuse(
      flag, absl::StrCat(value),
      absl::StrCat("a number from ", lowest, " to ", highest, " is needed"));
}

// Each name at most once, all of them known.
absl::StatusOr<std::vector<std::string>> ParseNames(
    std::string_view flag, const std::string& text,
    std::span<const std::string_view> known) {
  std::vector<std::string> names;
  for (const std::string_view name : absl::StrSplit(text, ',')) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Refuse(flag, Quoted(text),
                    absl::StrCat("there is no ", Quoted(name),
                                 "; did you mean ", NearestName(name, known),
                                 "? known: ", absl::StrJoin(known, ", ")));
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return Refuse(flag, Quoted(text), absl::StrCat(name, " is listed twice"));
    }
    names.emplace_back(name);
  }
  return names;
}

// 1, 2, 4 ... and the number of processors itself.
std::vector<int64_t> UpTo(int64_t processors) {
  std::vector<int64_t> threads;
  for (int64_t n = 1; n < processors; n *= 2) threads.push_back(n);
  threads.push_back(processors);
  return threads;
}

absl::StatusOr<std::vector<int64_t>> ParseThreads(const std::string& text,
                                                  int64_t processors) {
  if (text == "auto") return UpTo(processors);
  std::vector<int64_t> threads;
  for (const std::string_view item : absl::StrSplit(text, ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(item, &number) || number < 1 ||
        number > kMostThreads ||
        std::find(threads.begin(), threads.end(), number) != threads.end()) {
      return Refuse("threads", Quoted(text),
                    absl::StrCat("auto, or different numbers from 1 to ",
                                 kMostThreads, " with commas between"));
    }
    threads.push_back(number);
  }
  return threads;
}

absl::StatusOr<std::vector<std::string>> ParseCodecs(const std::string& text) {
  const std::span<const std::string_view> known = offload::CodecNames();
  if (text != "all") return ParseNames("codecs", text, known);
  std::vector<std::string> names;
  for (const std::string_view name : known) {
    // Skips the alias of nf4, and codecs whose library is not in this build.
    if (name == "quantization" || !offload::CreateCodec(name).ok()) continue;
    names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<std::vector<int64_t>> ParseBlocks(
    const OffloadBenchFlags& flags) {
  TESSERA_RETURN_IF_ERROR(CheckBytes("min_bytes", flags.min_bytes));
  TESSERA_RETURN_IF_ERROR(CheckBytes("max_bytes", flags.max_bytes));
  TESSERA_RETURN_IF_ERROR(CheckNumber("factor", flags.factor, 2, 1 << 20));
  if (flags.min_bytes > flags.max_bytes) {
    return Refuse("min_bytes", ByteSize(flags.min_bytes).ToString(),
                  absl::StrCat("at most --max_bytes=",
                               ByteSize(flags.max_bytes).ToString()));
  }
  std::vector<int64_t> blocks;
  for (int64_t bytes = flags.min_bytes; bytes <= flags.max_bytes;
       bytes *= flags.factor) {
    blocks.push_back(bytes);
  }
  return blocks;
}

absl::Status CheckSizes(const OffloadBenchFlags& flags,
                        const std::vector<std::string>& parts) {
  TESSERA_RETURN_IF_ERROR(CheckBytes("size", flags.size));
  TESSERA_RETURN_IF_ERROR(CheckNumber("depth", flags.depth, 1, kMostDepth));
  if (!(flags.seconds >= 0 && flags.seconds <= kMostSeconds)) {
    return Refuse("seconds", absl::StrCat(flags.seconds),
                  "a number from 0 to 3600 is needed");
  }
  const bool uses_blocks =
      std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
        return part != "codecs" && part != "optimizer";
      });
  if (uses_blocks && flags.max_bytes > flags.size) {
    return Refuse(
        "max_bytes", ByteSize(flags.max_bytes).ToString(),
        absl::StrCat("at most --size=", ByteSize(flags.size).ToString()));
  }
  if (flags.dir.empty()) {
    return Refuse("dir", "", "a writable directory is needed");
  }
  return absl::OkStatus();
}

// A flag that only some devices use.
struct DeviceFlag {
  std::string_view name;
  std::string_view devices;  // "cpu and cuda"
  bool is_given = false;
};

std::vector<DeviceFlag> DeviceFlags(const OffloadBenchFlags& flags) {
  const OffloadBenchFlags none;
  return {
      {"what", "cpu", flags.what != none.what},
      {"threads", "cpu", flags.threads != none.threads},
      {"clock", "cpu", flags.clock != none.clock},
      {"codecs", "cpu", flags.codecs != none.codecs},
      {"dir", "cpu", flags.dir != none.dir},
      {"depth", "cpu", flags.depth != none.depth},
      {"size", "cpu and cuda", flags.size != none.size},
      {"seconds", "cpu and cuda", flags.seconds != none.seconds},
      {"min_bytes", "cpu and cuda", flags.min_bytes != none.min_bytes},
      {"max_bytes", "cpu and cuda", flags.max_bytes != none.max_bytes},
      {"factor", "cpu and cuda", flags.factor != none.factor},
      {"pcie", "cuda and emulated", flags.pcie != none.pcie},
      {"device_memory", "emulated", flags.device_memory != none.device_memory},
      {"host_memory", "emulated", flags.host_memory != none.host_memory},
      {"layers", "emulated", flags.layers != none.layers},
      {"layer_parameters", "emulated",
       flags.layer_parameters != none.layer_parameters},
      {"layer_ms", "emulated", flags.layer_ms != none.layer_ms},
  };
}

absl::Status CheckDevice(const OffloadBenchFlags& flags) {
  if (std::find(kDevices.begin(), kDevices.end(), flags.device) ==
      kDevices.end()) {
    return Refuse(
        "device", Quoted(flags.device),
        absl::StrCat("one of ", absl::StrJoin(kDevices, ", "), " is needed"));
  }
  for (const DeviceFlag& flag : DeviceFlags(flags)) {
    const std::vector<std::string_view> devices =
        absl::StrSplit(flag.devices, " and ");
    if (!flag.is_given || std::find(devices.begin(), devices.end(),
                                    flags.device) != devices.end()) {
      continue;
    }
    return Refuse(
        "device", flags.device,
        absl::StrCat(
            "--", flag.name, " has no effect with it; leave it out, ",
            "or use --device=", absl::StrJoin(devices, " or --device=")));
  }
  return absl::OkStatus();
}

// "50GB/s": bytes a second.
absl::StatusOr<double> ParseRate(std::string_view flag,
                                 const std::string& text) {
  std::string_view size = text;
  absl::ConsumeSuffix(&size, "/s");
  const absl::StatusOr<ByteSize> parsed = ParseByteSize(size);
  if (parsed.ok() && parsed->bytes() >= kLeastRate) {
    return static_cast<double>(parsed->bytes());
  }
  return Refuse(flag, Quoted(text),
                "a rate such as 50GB/s, at least 1MB/s, is needed");
}

absl::StatusOr<StepModel> ParseStepModel(const OffloadBenchFlags& flags) {
  StepModel model;
  TESSERA_ASSIGN_OR_RETURN(model.pcie_bytes_per_second,
                           ParseRate("pcie", flags.pcie));
  TESSERA_ASSIGN_OR_RETURN(model.memory_bytes_per_second,
                           ParseRate("device_memory", flags.device_memory));
  TESSERA_ASSIGN_OR_RETURN(model.host_bytes_per_second,
                           ParseRate("host_memory", flags.host_memory));
  TESSERA_RETURN_IF_ERROR(CheckNumber("layers", flags.layers, 1, kMostLayers));
  TESSERA_RETURN_IF_ERROR(CheckNumber("layer_parameters",
                                      flags.layer_parameters, 4,
                                      int64_t{1'000'000'000'000}));
  if (!(flags.layer_ms > 0 && flags.layer_ms <= 1e6)) {
    return Refuse("layer_ms", absl::StrCat(flags.layer_ms),
                  "a number above 0, up to 1000000, is needed");
  }
  model.layers = flags.layers;
  model.layer_parameters = flags.layer_parameters;
  model.layer_seconds = flags.layer_ms * 1e-3;
  return model;
}

}  // namespace

absl::StatusOr<OffloadBenchOptions> ParseOffloadBenchFlags(
    const OffloadBenchFlags& flags, int64_t processors) {
  OffloadBenchOptions options;
  TESSERA_RETURN_IF_ERROR(CheckDevice(flags));
  TESSERA_ASSIGN_OR_RETURN(options.parts,
                           ParseNames("what", flags.what, kParts));
  TESSERA_ASSIGN_OR_RETURN(options.threads,
                           ParseThreads(flags.threads, processors));
  TESSERA_ASSIGN_OR_RETURN(options.codecs, ParseCodecs(flags.codecs));
  TESSERA_ASSIGN_OR_RETURN(options.blocks, ParseBlocks(flags));
  TESSERA_RETURN_IF_ERROR(CheckSizes(flags, options.parts));
  options.device = flags.device;
  TESSERA_ASSIGN_OR_RETURN(options.step, ParseStepModel(flags));
  options.size = flags.size;
  options.seconds = flags.seconds;
  options.directory = flags.dir;
  options.depth = flags.depth;
  options.clock = flags.clock;
  return options;
}

}  // namespace tessera::offload_bench
