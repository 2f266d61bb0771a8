#include "tools/comm_bench/bench_options.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/operation/operation.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

namespace {

constexpr std::array<std::pair<char, std::string_view>, 8> kShort = {{
    {'b', "min_bytes"},
    {'e', "max_bytes"},
    {'f', "factor"},
    {'n', "iterations"},
    {'w', "warmup"},
    {'d', "dtype"},
    {'o', "reduction"},
    {'c', "check"},
}};

// The long name of "-b...", or nothing.
std::string_view LongName(std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return "";
  for (const auto& [letter, name] : kShort) {
    if (argument[1] == letter) return name;
  }
  return "";
}

}  // namespace

std::vector<std::string> LongArguments(
    const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = LongName(arguments[i]);
    if (name.empty()) {
      result.push_back(arguments[i]);
      continue;
    }
    std::string_view value = std::string_view(arguments[i]).substr(2);
    absl::ConsumePrefix(&value, "=");
    if (arguments[i].size() > 2) {
      result.push_back(absl::StrCat("--", name, "=", value));
    } else if (i + 1 < arguments.size()) {
      result.push_back(absl::StrCat("--", name, "=", arguments[++i]));
    } else {
      result.push_back(absl::StrCat("--", name));
    }
  }
  return result;
}

namespace {

using collectives::OpKind;

constexpr int64_t kMaxBytes = int64_t{1} << 36;
constexpr int64_t kMaxWorld = 256;
constexpr int64_t kMaxIterations = 100'000;
constexpr size_t kMaxItems = 32;

absl::Status Refuse(std::string_view flag, std::string_view value,
                    std::string_view why) {
  return FlagError(flag, value, absl::InvalidArgumentError(why));
}

absl::Status CheckRange(std::string_view flag, int64_t value, int64_t lowest,
                        int64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return Refuse(
      flag, absl::StrCat(value),
      absl::StrCat("expected a number from ", lowest, " to ", highest));
}

// The items of a list, parsed, each at most once.
template <typename T>
absl::StatusOr<std::vector<T>> ParseList(
    std::string_view flag, const std::string& text,
    const std::function<absl::StatusOr<T>(std::string_view)>& parse) {
  std::vector<T> items;
  for (std::string_view item : absl::StrSplit(text, ',')) {
    TESSERA_ASSIGN_OR_RETURN(T value, parse(item), FlagError(flag, text, _));
    if (std::find(items.begin(), items.end(), value) != items.end()) {
      return Refuse(flag, text, "duplicate item");
    }
    items.push_back(std::move(value));
    if (items.size() > kMaxItems) {
      return Refuse(flag, text, absl::StrCat("at most ", kMaxItems, " items"));
    }
  }
  return items;
}

absl::StatusOr<std::string> ParseName(std::string_view item) {
  if (!item.empty() && item.size() < 64) return std::string(item);
  return absl::InvalidArgumentError(
      "expected names of 1 to 63 characters, separated by commas");
}

absl::StatusOr<int64_t> ParseWorld(std::string_view item) {
  int64_t world = 0;
  if (absl::SimpleAtoi(item, &world) && world >= 1 && world <= kMaxWorld) {
    return world;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected numbers from 1 to ", kMaxWorld, ", separated by commas"));
}

absl::StatusOr<OpKind> ParseCollective(std::string_view item) {
  const auto kind = collectives::ParseOpKind(item);
  if (kind.ok() && IsCollective(*kind)) return kind;
  std::string allowed = "all";
  for (const OpKind known : collectives::kCollectiveKinds) {
    absl::StrAppend(&allowed, ", ", OpKindName(known));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a list of collectives: ", allowed));
}

absl::StatusOr<std::string> ParseAlgorithmName(std::string_view item) {
  if (item == "all" || item == "adaptive") return std::string(item);
  TESSERA_ASSIGN_OR_RETURN(const collectives::Algorithm algorithm,
                           collectives::ParseAlgorithm(item),
                           absl::InvalidArgumentError(absl::StrCat(
                               _.message(), "; also all and adaptive")));
  return std::string(AlgorithmName(algorithm));
}

absl::StatusOr<std::vector<int64_t>> MakeSizes(const BenchFlags& flags) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("min_bytes", flags.min_bytes, 1, kMaxBytes));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("max_bytes", flags.max_bytes, 1, kMaxBytes));
  TESSERA_RETURN_IF_ERROR(CheckRange("factor", flags.factor, 2, 1 << 20));
  if (flags.min_bytes > flags.max_bytes) {
    return Refuse(
        "min_bytes", ByteSize(flags.min_bytes).ToString(),
        absl::StrCat("at most --max_bytes=",
                     ByteSize(flags.max_bytes).ToString(), " is allowed"));
  }
  std::vector<int64_t> sizes;
  for (int64_t size = flags.min_bytes; size <= flags.max_bytes;
       size *= flags.factor) {
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status CheckNumbers(const BenchFlags& flags) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("iterations", flags.iterations, 0, kMaxIterations));
  TESSERA_RETURN_IF_ERROR(CheckRange("warmup", flags.warmup, 0, 1000));
  return CheckRange("group_size", flags.group_size, 0, kMaxWorld);
}

absl::Status CheckTypes(const BenchOptions& options) {
  const bool reduces =
      std::any_of(options.ops.begin(), options.ops.end(), collectives::Reduces);
  for (const DType dtype : options.dtypes) {
    if (!reduces) break;
    TESSERA_RETURN_IF_ERROR(
        Validate(ReductionFor(options.reduction.op, dtype), dtype),
        FlagError("dtype", DTypeName(dtype), _));
  }
  return absl::OkStatus();
}

absl::Status CheckRegret(const BenchFlags& flags) {
  if (!flags.regret || flags.algorithm == "all") return absl::OkStatus();
  return Refuse("algorithm", flags.algorithm,
                "--regret compares all algorithms; leave out --algorithm");
}

// What only engines of the host have.
absl::Status CheckDevice(const BenchFlags& flags) {
  if (flags.device == "cpu") return absl::OkStatus();
  if (flags.device != "emulated" && flags.device != "cuda") {
    return Refuse("device", flags.device, "expected cpu, emulated or cuda");
  }
  const std::pair<std::string_view, bool> of_the_host[] = {
      {"registered", flags.registered},
      {"reproducible", flags.reproducible},
      {"overlap", flags.overlap},
      {"regret", flags.regret},
      {"group_size", flags.group_size != 0}};
  for (const auto& [flag, is_given] : of_the_host) {
    if (!is_given) continue;
    return Refuse("device", flags.device,
                  absl::StrCat("--", flag,
                               " is for memory of the host; leave it out, or "
                               "use --device=cpu"));
  }
  if (flags.algorithm == "engine") return absl::OkStatus();
  return Refuse("algorithm", flags.algorithm,
                absl::StrCat("--device=", flags.device,
                             " has only the engine's own algorithm; leave out "
                             "--algorithm"));
}

}  // namespace

collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype) {
  collectives::Reduction reduction;
  reduction.op = op;
  if (op == collectives::ReduceOp::kScaledSum) {
    reduction.scale = IsFloating(dtype) ? 0.5 : 2.0;
  }
  return reduction;
}

absl::StatusOr<BenchOptions> ParseBenchFlags(const BenchFlags& flags) {
  BenchOptions options;
  static_cast<BenchSwitches&>(options) = flags;
  TESSERA_ASSIGN_OR_RETURN(options.sizes, MakeSizes(flags));
  TESSERA_RETURN_IF_ERROR(CheckNumbers(flags));
  TESSERA_RETURN_IF_ERROR(CheckDevice(flags));
  TESSERA_RETURN_IF_ERROR(CheckRegret(flags));
  options.device = flags.device;
  const bool on_device = flags.device != "cpu";
  if (on_device) options.bound = false;
  std::string engine = flags.engine;
  if (engine.empty()) engine = on_device ? "cuda" : "shared_memory";
  TESSERA_ASSIGN_OR_RETURN(options.engines,
                           ParseList<std::string>("engine", engine, ParseName));
  TESSERA_ASSIGN_OR_RETURN(options.worlds,
                           ParseList<int64_t>("np", flags.np, ParseWorld));
  if (flags.op == "all") {
    options.ops.assign(collectives::kCollectiveKinds.begin(),
                       collectives::kCollectiveKinds.end());
  } else {
    TESSERA_ASSIGN_OR_RETURN(
        options.ops, ParseList<OpKind>("op", flags.op, ParseCollective));
  }
  TESSERA_ASSIGN_OR_RETURN(
      options.algorithms,
      ParseList<std::string>("algorithm", flags.algorithm, ParseAlgorithmName));
  TESSERA_ASSIGN_OR_RETURN(options.dtypes,
                           ParseList<DType>("dtype", flags.dtype, ParseDType));
  TESSERA_ASSIGN_OR_RETURN(options.reduction.op,
                           collectives::ParseReduceOp(flags.reduction),
                           FlagError("reduction", flags.reduction, _));
  TESSERA_RETURN_IF_ERROR(CheckTypes(options));
  return options;
}

}  // namespace tessera::tools
