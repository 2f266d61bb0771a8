#include "tools/comm_bench/bench_options.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/status_macros.h"

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
ABSL_FLAG(bool, quiet, false, "no progress on stderr");

namespace tessera::tools {
namespace {

using collectives::OpKind;

constexpr int64_t kMaxBytes = int64_t{1} << 36;
constexpr int64_t kMaxWorld = 256;
constexpr size_t kMaxItems = 32;

// The items of a list, parsed, each at most once.
template <typename T>
absl::StatusOr<std::vector<T>> ParseList(
    std::string_view flag, const std::string& text,
    const std::function<absl::StatusOr<T>(std::string_view)>& parse) {
  std::vector<T> items;
  for (std::string_view item : absl::StrSplit(text, ',')) {
    TESSERA_ASSIGN_OR_RETURN(T value, parse(item), FlagError(flag, text, _));
    if (std::find(items.begin(), items.end(), value) != items.end()) {
      return FlagError(flag, text, "duplicate item");
    }
    items.push_back(std::move(value));
    if (items.size() > kMaxItems) {
      return FlagError(flag, text,
                       absl::StrCat("at most ", kMaxItems, " items"));
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

absl::StatusOr<std::vector<OpKind>> ParseOps(const std::string& text) {
  if (text != "all") return ParseList<OpKind>("op", text, ParseCollective);
  return std::vector<OpKind>(collectives::kCollectiveKinds.begin(),
                             collectives::kCollectiveKinds.end());
}

absl::StatusOr<std::vector<int64_t>> ParseSizes() {
  const ByteSize smallest = absl::GetFlag(FLAGS_min_bytes);
  const ByteSize largest = absl::GetFlag(FLAGS_max_bytes);
  const int64_t factor = absl::GetFlag(FLAGS_factor);
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("min_bytes", smallest.bytes(), 1, kMaxBytes));
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("max_bytes", largest.bytes(), 1, kMaxBytes));
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("factor", factor, 2, 1 << 20));
  if (smallest > largest) {
    return FlagError("min_bytes", smallest.ToString(),
                     absl::StrCat("at most --max_bytes=", largest.ToString(),
                                  " is allowed"));
  }
  std::vector<int64_t> sizes;
  for (int64_t size = smallest.bytes(); size <= largest.bytes();
       size *= factor) {
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status CheckTypes(const BenchOptions& options) {
  if (std::none_of(options.ops.begin(), options.ops.end(),
                   collectives::Reduces)) {
    return absl::OkStatus();
  }
  for (const DType dtype : options.dtypes) {
    TESSERA_RETURN_IF_ERROR(
        Validate(ReductionFor(options.reduction, dtype), dtype),
        FlagError("dtype", DTypeName(dtype), _));
  }
  return absl::OkStatus();
}

// Rejects flags that only engines of the host support.
absl::Status CheckDevice(const BenchOptions& options) {
  if (options.device == "cpu") return absl::OkStatus();
  if (options.device != "emulated" && options.device != "cuda") {
    return FlagError("device", options.device,
                     "expected cpu, emulated or cuda");
  }
  const std::pair<std::string_view, bool> host_flags[] = {
      {"registered", options.registered},
      {"reproducible", options.reproducible},
      {"overlap", options.overlap},
      {"regret", options.regret},
      {"group_size", options.group_size != 0}};
  for (const auto& [flag, is_given] : host_flags) {
    if (!is_given) continue;
    return FlagError(
        "device", options.device,
        absl::StrCat("--", flag,
                     " is for memory of the host; leave it out, or "
                     "use --device=cpu"));
  }
  const std::string algorithm = absl::GetFlag(FLAGS_algorithm);
  if (algorithm == "engine") return absl::OkStatus();
  return FlagError(
      "algorithm", algorithm,
      absl::StrCat("--device=", options.device,
                   " has only the engine's own algorithm; leave out "
                   "--algorithm"));
}

void ReadSwitches(BenchOptions* options) {
  options->device = absl::GetFlag(FLAGS_device);
  options->iterations = absl::GetFlag(FLAGS_iterations);
  options->warmup = absl::GetFlag(FLAGS_warmup);
  options->group_size = absl::GetFlag(FLAGS_group_size);
  options->bind = absl::GetFlag(FLAGS_bind);
  options->registered = absl::GetFlag(FLAGS_registered);
  options->in_place = absl::GetFlag(FLAGS_in_place);
  options->reproducible = absl::GetFlag(FLAGS_reproducible);
  options->overlap = absl::GetFlag(FLAGS_overlap);
  options->regret = absl::GetFlag(FLAGS_regret);
  options->check = absl::GetFlag(FLAGS_check);
  // There is no bound for memory of a device.
  options->bound = absl::GetFlag(FLAGS_bound) && options->device == "cpu";
  options->format = absl::GetFlag(FLAGS_format);
  options->quiet = absl::GetFlag(FLAGS_quiet);
}

absl::Status ParseLists(BenchOptions* options) {
  std::string engine = absl::GetFlag(FLAGS_engine);
  if (engine.empty()) {
    engine = options->device == "cpu" ? "shared_memory" : "cuda";
  }
  std::string algorithm = absl::GetFlag(FLAGS_algorithm);
  if (options->regret && algorithm == "engine") algorithm = "all";
  if (options->regret && algorithm != "all") {
    return FlagError("algorithm", algorithm,
                     "--regret compares all algorithms; leave out --algorithm");
  }
  TESSERA_ASSIGN_OR_RETURN(options->engines,
                           ParseList<std::string>("engine", engine, ParseName));
  TESSERA_ASSIGN_OR_RETURN(
      options->worlds,
      ParseList<int64_t>("np", absl::GetFlag(FLAGS_np), ParseWorld));
  TESSERA_ASSIGN_OR_RETURN(options->ops, ParseOps(absl::GetFlag(FLAGS_op)));
  TESSERA_ASSIGN_OR_RETURN(
      options->algorithms,
      ParseList<std::string>("algorithm", algorithm, ParseAlgorithmName));
  TESSERA_ASSIGN_OR_RETURN(
      options->dtypes,
      ParseList<DType>("dtype", absl::GetFlag(FLAGS_dtype), ParseDType));
  const std::string reduction = absl::GetFlag(FLAGS_reduction);
  TESSERA_ASSIGN_OR_RETURN(options->reduction,
                           collectives::ParseReduceOp(reduction),
                           FlagError("reduction", reduction, _));
  return absl::OkStatus();
}

}  // namespace

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
                "bound",        "format",     "quiet"},
      .short_flags = {{'b', "min_bytes"},
                      {'e', "max_bytes"},
                      {'f', "factor"},
                      {'n', "iterations"},
                      {'w', "warmup"},
                      {'d', "dtype"},
                      {'o', "reduction"},
                      {'c', "check"}}};
  return *tool;
}

collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype) {
  if (op != collectives::ReduceOp::kScaledSum) return {op};
  return collectives::Reduction::ScaledSum(IsFloating(dtype) ? 0.5 : 2.0);
}

absl::StatusOr<BenchOptions> OptionsFromFlags() {
  BenchOptions options;
  ReadSwitches(&options);
  TESSERA_ASSIGN_OR_RETURN(options.sizes, ParseSizes());
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("iterations", options.iterations, 0, 100'000));
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("warmup", options.warmup, 0, 1000));
  TESSERA_RETURN_IF_ERROR(
      CheckFlagRange("group_size", options.group_size, 0, kMaxWorld));
  TESSERA_RETURN_IF_ERROR(CheckDevice(options));
  TESSERA_RETURN_IF_ERROR(ParseLists(&options));
  TESSERA_RETURN_IF_ERROR(CheckTypes(options));
  return options;
}

}  // namespace tessera::tools
