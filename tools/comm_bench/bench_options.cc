#include "tools/comm_bench/bench_options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/typed_flags.h"

namespace tessera::tools {
namespace {

using collectives::OpKind;

constexpr int64_t kMaxBytes = int64_t{1} << 36;
constexpr int64_t kMaxWorld = 256;

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const ByteSize size, ParseByteSize(text));
  if (size.bytes() >= 1 && size.bytes() <= kMaxBytes) return size.bytes();
  return absl::InvalidArgumentError(
      absl::StrCat("expected 1 to ", ByteSize(kMaxBytes).ToString()));
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

Flag OpFlag(std::vector<OpKind>& ops) {
  Flag flag =
      ListFlag("op", "collectives, such as all_reduce,all_gather, or all",
               "all_reduce", ops, ParseCollective);
  flag.set = [&ops, list = flag.set](std::string_view text) {
    if (text != "all") return list(text);
    ops.assign(collectives::kCollectiveKinds.begin(),
               collectives::kCollectiveKinds.end());
    return absl::OkStatus();
  };
  return flag;
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
absl::Status CompleteDevice(BenchOptions& options) {
  const bool is_host = options.device == "cpu";
  if (options.engines.empty()) {
    options.engines = {is_host ? "shared_memory" : "cuda"};
  }
  if (is_host) return absl::OkStatus();
  if (options.device != "emulated" && options.device != "cuda") {
    return FlagError("device", options.device,
                     "expected cpu, emulated or cuda");
  }
  options.bound = false;  // Only memory of the host has one.
  const std::pair<std::string_view, bool> host_flags[] = {
      {"registered", options.registered},
      {"reproducible", options.reproducible},
      {"overlap", options.overlap},
      {"regret", options.regret},
      {"group_size", options.group_size != 0},
      {"algorithm", options.algorithms != std::vector<std::string>{"engine"}}};
  for (const auto& [flag, is_given] : host_flags) {
    if (!is_given) continue;
    return FlagError("device", options.device,
                     absl::StrCat("--", flag,
                                  " is for memory of the host; leave it out, "
                                  "or use --device=cpu"));
  }
  return absl::OkStatus();
}

absl::Status CompleteRegret(BenchOptions& options) {
  if (!options.regret) return absl::OkStatus();
  const std::string& first = options.algorithms[0];
  if (options.algorithms.size() > 1 || (first != "engine" && first != "all")) {
    return FlagError("algorithm", first,
                     "--regret compares all algorithms; leave out --algorithm");
  }
  options.algorithms = {"all"};
  return absl::OkStatus();
}

std::vector<Flag> Flags(BenchOptions& o) {
  return {
      ParsedFlag("min_bytes", "the smallest message; -b", "8B", o.min_bytes,
                 ParseBytes),
      ParsedFlag("max_bytes", "the largest message; -e", "64MiB", o.max_bytes,
                 ParseBytes),
      RangeFlag("factor", "from each size to the next; -f", o.factor, 2,
                1 << 20),
      FieldFlag(
          "device",
          "whose memory the buffers are: cpu, cuda, or emulated, whose times "
          "say nothing about a GPU",
          o.device),
      ListFlag("engine",
               "engines to compare with the first, such as shared_memory,mpi; "
               "default: shared_memory, or cuda on a device",
               "", o.engines, ParseName),
      ListFlag("np", "numbers of ranks, such as 2,4,8", "2", o.worlds,
               ParseWorld),
      OpFlag(o.ops),
      ListFlag("algorithm",
               "engine (its own), adaptive, ring, tree, ..., or all", "engine",
               o.algorithms, ParseAlgorithmName),
      ListFlag("dtype", "element types, such as f32,bf16; -d", "f32", o.dtypes,
               ParseDType),
      ParsedFlag("reduction", "sum, average, max, ...; -o", "sum", o.reduction,
                 collectives::ParseReduceOp),
      FieldFlag("registered", "uses buffers from AllocateShared", o.registered),
      FieldFlag("in_place", "input and output are the same memory", o.in_place),
      FieldFlag(
          "reproducible",
          "also measures reductions in reproducible mode, in separate rows",
          o.reproducible),
      RangeFlag("group_size",
                "treats so many consecutive ranks as a host; 0: all are on one",
                o.group_size, 0, kMaxWorld),
      FieldFlag(
          "bind",
          "binds each rank to its share of the processors, round-robin if "
          "there are fewer than ranks",
          o.bind),
      RangeFlag(
          "iterations",
          "timed iterations of each row; 0: as many as fit into 0.3 s; -n",
          o.iterations, 0, 100'000),
      RangeFlag("warmup", "iterations before the timed ones; -w", o.warmup, 0,
                1000),
      FieldFlag("overlap", "also measures the overlap with computation",
                o.overlap),
      FieldFlag(
          "regret",
          "times every algorithm and reports how much slower the adaptive "
          "choice is than the fastest",
          o.regret),
      FieldFlag("check", "a wrong result ends the run; -c", o.check),
      FieldFlag(
          "bound",
          "also measures the memory-traffic bound; share is the bound over "
          "the time",
          o.bound),
      FieldFlag(
          "format",
          "text, json or csv; ratio is a row's time over that of the first "
          "engine and algorithm of its case: above 1 is slower than the "
          "first",
          o.format),
      FieldFlag("quiet", "no progress on stderr", o.quiet)};
}

}  // namespace

Tool CommBenchTool(BenchOptions& options) {
  return {.name = "comm_bench",
          .summary =
              "Times collectives on several engines and algorithms side by "
              "side, and checks their results.",
          .example = "-b 8 -e 64M -f 4 --engine=shared_memory,mpi --np=2,4",
          .flags = Flags(options),
          .short_flags = {{'b', "min_bytes"},
                          {'e', "max_bytes"},
                          {'f', "factor"},
                          {'n', "iterations"},
                          {'w', "warmup"},
                          {'d', "dtype"},
                          {'o', "reduction"},
                          {'c', "check"}}};
}

absl::Status CompleteOptions(BenchOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      options.sizes,
      GrowingSizes(options.min_bytes, options.max_bytes, options.factor));
  TESSERA_RETURN_IF_ERROR(CompleteDevice(options));
  TESSERA_RETURN_IF_ERROR(CompleteRegret(options));
  return CheckTypes(options);
}

absl::StatusOr<BenchOptions> ParseOptions(
    const std::vector<std::string>& arguments) {
  BenchOptions options;
  TESSERA_RETURN_IF_ERROR(ParseFlags(CommBenchTool(options), arguments));
  TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
  return options;
}

collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype) {
  if (op != collectives::ReduceOp::kScaledSum) return {op};
  return collectives::Reduction::ScaledSum(IsFloating(dtype) ? 0.5 : 2.0);
}

}  // namespace tessera::tools
