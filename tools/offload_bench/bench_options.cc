#include "tools/offload_bench/bench_options.h"

#include <algorithm>
#include <span>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
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

using tessera::ByteSize;
using tessera::offload_bench::StepModel;

ABSL_FLAG(std::string, what, "codecs,optimizer,file,tiers",
          "parts to measure, separated by commas");
ABSL_FLAG(ByteSize, size, ByteSize(64 << 20),
          "bytes of values, and of an optimizer's f32 parameters");
ABSL_FLAG(std::string, threads, "auto",
          "threads of the optimizers, such as 1,2; auto: 1, 2, 4 ... up to the "
          "processors");
ABSL_FLAG(double, seconds, 0.5,
          "approximate duration of each measurement, including its limit");
ABSL_FLAG(tessera::offload_bench::TimeKind, clock,
          tessera::offload_bench::TimeKind::kWall,
          "clock for codecs, optimizer and tiers: wall, or processor, which "
          "excludes the time of other processes; file always uses wall");
ABSL_FLAG(std::string, codecs, "all",
          "codecs to measure, such as lossless,int8, or all");
ABSL_FLAG(std::string, dir, ".",
          "directory for the files of file, on the device to measure");
ABSL_FLAG(ByteSize, min_bytes, ByteSize(64 << 10),
          "the smallest block of file and tiers; -b");
ABSL_FLAG(ByteSize, max_bytes, ByteSize(16 << 20), "the largest block; -e");
ABSL_FLAG(int64_t, factor, 16, "factor from each block size to the next; -f");
ABSL_FLAG(int64_t, depth, 32, "requests in flight, for tier and device");
ABSL_FLAG(std::string, device, "cpu",
          "cpu: the parts of --what; cuda: copies to and from a GPU; emulated: "
          "simulated training steps with offload");
ABSL_FLAG(std::string, pcie, "50GB/s",
          "rate of the link to the device, each way, such as 50GB/s");
ABSL_FLAG(std::string, device_memory, "3700GB/s",
          "rate of the simulated device's memory");
ABSL_FLAG(std::string, host_memory, "100GB/s",
          "rate at which the host's optimizer moves bytes in a simulated step");
ABSL_FLAG(int64_t, layers, StepModel().layers,
          "equal layers of the simulated model");
ABSL_FLAG(int64_t, layer_parameters, StepModel().layer_parameters,
          "parameters of a simulated layer, in bf16");
ABSL_FLAG(double, layer_ms, StepModel().layer_seconds * 1e3,
          "milliseconds of a simulated layer's forward and backward pass");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText,
          "text, json or csv; share is the limit's time over the measured one: "
          "1 is as fast as the limit");
ABSL_FLAG(bool, quiet, false, "no progress on stderr");

namespace tessera::offload_bench {
namespace {

using tools::CheckFlagRange;
using tools::FlagError;

constexpr int64_t kUnit = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 38;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kLeastRate = 1'000'000;  // Bytes a second.
// Simulating a step takes time with the square of the layers: 256 of them take
// some 20 s.
constexpr int64_t kMostLayers = 256;

absl::Status CheckBytes(std::string_view flag, ByteSize size) {
  if (size.bytes() >= kUnit && size.bytes() <= kMostBytes &&
      size.bytes() % kUnit == 0) {
    return absl::OkStatus();
  }
  return FlagError(flag, size.ToString(),
                   absl::StrCat("a multiple of 4096 bytes up to ",
                                ByteSize(kMostBytes).ToString(), " is needed"));
}

// Each name at most once, all of them known.
absl::StatusOr<std::vector<std::string>> ParseNames(
    std::string_view flag, const std::string& text,
    std::span<const std::string_view> known) {
  std::vector<std::string> names;
  for (const std::string_view name : absl::StrSplit(text, ',')) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return FlagError(flag, Quoted(text),
                       absl::StrCat("there is no ", Quoted(name),
                                    "; did you mean ", NearestName(name, known),
                                    "? known: ", absl::StrJoin(known, ", ")));
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return FlagError(flag, Quoted(text),
                       absl::StrCat(name, " is listed twice"));
    }
    names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<std::vector<int64_t>> ParseThreads(const std::string& text,
                                                  int64_t processors) {
  std::vector<int64_t> threads;
  if (text == "auto") {  // 1, 2, 4 ... and the number of processors itself.
    for (int64_t n = 1; n < processors; n *= 2) threads.push_back(n);
    threads.push_back(processors);
    return threads;
  }
  for (const std::string_view item : absl::StrSplit(text, ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(item, &number) || number < 1 ||
        number > kMostThreads ||
        std::find(threads.begin(), threads.end(), number) != threads.end()) {
      return FlagError("threads", Quoted(text),
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

absl::StatusOr<std::vector<int64_t>> ParseBlocks() {
  const ByteSize smallest = absl::GetFlag(FLAGS_min_bytes);
  const ByteSize largest = absl::GetFlag(FLAGS_max_bytes);
  const int64_t factor = absl::GetFlag(FLAGS_factor);
  TESSERA_RETURN_IF_ERROR(CheckBytes("min_bytes", smallest));
  TESSERA_RETURN_IF_ERROR(CheckBytes("max_bytes", largest));
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("factor", factor, 2, 1 << 20));
  if (smallest > largest) {
    return FlagError("min_bytes", smallest.ToString(),
                     absl::StrCat("at most --max_bytes=", largest.ToString()));
  }
  std::vector<int64_t> blocks;
  for (int64_t bytes = smallest.bytes(); bytes <= largest.bytes();
       bytes *= factor) {
    blocks.push_back(bytes);
  }
  return blocks;
}

absl::Status CheckSizes(const OffloadBenchOptions& options) {
  const ByteSize size(options.size);
  TESSERA_RETURN_IF_ERROR(CheckBytes("size", size));
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("depth", options.depth, 1, 4096));
  if (!(options.seconds >= 0 && options.seconds <= 3600)) {
    return FlagError("seconds", absl::StrCat(options.seconds),
                     "a number from 0 to 3600 is needed");
  }
  const auto has_blocks = [](const std::string& part) {
    return part == "file" || part == "tiers";
  };
  const ByteSize largest = absl::GetFlag(FLAGS_max_bytes);
  if (largest > size &&
      std::any_of(options.parts.begin(), options.parts.end(), has_blocks)) {
    return FlagError("max_bytes", largest.ToString(),
                     absl::StrCat("at most --size=", size.ToString()));
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

absl::Status CheckDevice(const std::string& device) {
  if (std::find(kDevices.begin(), kDevices.end(), device) == kDevices.end()) {
    return FlagError(
        "device", Quoted(device),
        absl::StrCat("one of ", absl::StrJoin(kDevices, ", "), " is needed"));
  }
  const DeviceFlags all[] = {
      {{"what", "threads", "clock", "codecs", "dir", "depth"}, {"cpu"}},
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
      const absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(name);
      if (flag.CurrentValue() == flag.DefaultValue()) continue;
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
absl::StatusOr<double> ParseRate(std::string_view flag,
                                 const std::string& text) {
  std::string_view size = text;
  absl::ConsumeSuffix(&size, "/s");
  const absl::StatusOr<ByteSize> parsed = ParseByteSize(size);
  if (parsed.ok() && parsed->bytes() >= kLeastRate) {
    return static_cast<double>(parsed->bytes());
  }
  return FlagError(flag, Quoted(text),
                   "a rate such as 50GB/s, at least 1MB/s, is needed");
}

absl::StatusOr<StepModel> ParseStepModel() {
  StepModel model;
  TESSERA_ASSIGN_OR_RETURN(model.pcie_bytes_per_second,
                           ParseRate("pcie", absl::GetFlag(FLAGS_pcie)));
  TESSERA_ASSIGN_OR_RETURN(
      model.memory_bytes_per_second,
      ParseRate("device_memory", absl::GetFlag(FLAGS_device_memory)));
  TESSERA_ASSIGN_OR_RETURN(
      model.host_bytes_per_second,
      ParseRate("host_memory", absl::GetFlag(FLAGS_host_memory)));
  model.layers = absl::GetFlag(FLAGS_layers);
  model.layer_parameters = absl::GetFlag(FLAGS_layer_parameters);
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("layers", model.layers, 1, kMostLayers));
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("layer_parameters",
                                         model.layer_parameters, 4,
                                         int64_t{1'000'000'000'000}));
  const double layer_ms = absl::GetFlag(FLAGS_layer_ms);
  if (!(layer_ms > 0 && layer_ms <= 1e6)) {
    return FlagError("layer_ms", absl::StrCat(layer_ms),
                     "a number above 0, up to 1000000, is needed");
  }
  model.layer_seconds = layer_ms * 1e-3;
  return model;
}

}  // namespace

const tools::Tool& OffloadBenchTool() {
  static const tools::Tool* const tool = new tools::Tool{
      .name = "offload_bench",
      .summary =
          "Times codecs, CPU optimizers and memory tiers, each against a "
          "physical limit that is measured alternately.",
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
                "quiet"},
      .short_flags = {{'b', "min_bytes"}, {'e', "max_bytes"}, {'f', "factor"}}};
  return *tool;
}

absl::StatusOr<OffloadBenchOptions> OptionsFromFlags(int64_t processors) {
  OffloadBenchOptions options;
  options.device = absl::GetFlag(FLAGS_device);
  TESSERA_RETURN_IF_ERROR(CheckDevice(options.device));
  options.size = absl::GetFlag(FLAGS_size).bytes();
  options.seconds = absl::GetFlag(FLAGS_seconds);
  options.directory = absl::GetFlag(FLAGS_dir);
  options.depth = absl::GetFlag(FLAGS_depth);
  options.clock = absl::GetFlag(FLAGS_clock);
  options.format = absl::GetFlag(FLAGS_format);
  options.quiet = absl::GetFlag(FLAGS_quiet);
  TESSERA_ASSIGN_OR_RETURN(
      options.parts, ParseNames("what", absl::GetFlag(FLAGS_what), kParts));
  TESSERA_ASSIGN_OR_RETURN(
      options.threads, ParseThreads(absl::GetFlag(FLAGS_threads), processors));
  TESSERA_ASSIGN_OR_RETURN(options.codecs,
                           ParseCodecs(absl::GetFlag(FLAGS_codecs)));
  TESSERA_ASSIGN_OR_RETURN(options.blocks, ParseBlocks());
  TESSERA_RETURN_IF_ERROR(CheckSizes(options));
  TESSERA_ASSIGN_OR_RETURN(options.step, ParseStepModel());
  return options;
}

}  // namespace tessera::offload_bench
