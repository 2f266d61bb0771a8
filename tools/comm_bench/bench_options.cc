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
  if (size.bytes() <= kMaxBytes) return size.bytes();
  return absl::InvalidArgumentError(
      absl::StrCat("expected 0 to ", ByteSize(kMaxBytes).ToString()));
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
  if (item == "all" || item == "adaptive" || item == "prepared") {
    return std::string(item);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const collectives::Algorithm algorithm, collectives::ParseAlgorithm(item),
      absl::InvalidArgumentError(
          absl::StrCat(_.message(), "; also all, adaptive and prepared")));
  return std::string(AlgorithmName(algorithm));
}

// nccl-tests gives a number of iterations to check; 0 and false check none.
absl::StatusOr<bool> ParseCheck(std::string_view text) {
  int64_t checks = 0;
  bool check = false;
  if (absl::SimpleAtoi(text, &checks) && checks >= 0) return checks > 0;
  if (absl::SimpleAtob(text, &check)) return check;
  return absl::InvalidArgumentError("expected true, false, 0, 1 or a number");
}

// `flag`, whose value "all" sets `field` to `all` and `is_all`.
template <typename T, typename All>
Flag OrAll(Flag flag, std::vector<T>& field, const All& all,
           bool* is_all = nullptr) {
  flag.set = [&field, &all, is_all, list = flag.set](std::string_view text) {
    if (is_all != nullptr) *is_all = text == "all";
    if (text != "all") return list(text);
    field.assign(all.begin(), all.end());
    return absl::OkStatus();
  };
  return flag;
}

Flag ReductionFlag(BenchOptions& o) {
  return OrAll(ListFlag("reduction", "sum, average, max, ..., or all; -o",
                        "sum", o.reductions, collectives::ParseReduceOp),
               o.reductions, collectives::kAllReduceOps, &o.all_reductions);
}

Flag OpFlag(BenchOptions& o) {
  Flag flag =
      OrAll(ListFlag("op",
                     "collectives, such as all_reduce,all_gather, or all; a "
                     "reduction, as in nccl-tests, sets --reduction",
                     "all_reduce", o.ops, ParseCollective),
            o.ops, collectives::kCollectiveKinds);
  flag.set = [list = flag.set,
              reduction = ReductionFlag(o).set](std::string_view text) {
    return collectives::ParseReduceOp(text).ok() ? reduction(text) : list(text);
  };
  return flag;
}

Flag CheckFlag(BenchOptions& o) {
  Flag flag = ParsedFlag("check", "a wrong result ends the run; -c", "true",
                         o.check, ParseCheck);
  flag.is_boolean = true;
  return flag;
}

// A flag of nccl-tests: its letter, its long name (empty: as here), and the
// flag here, or without a counterpart its usual value there, which scripts may
// give.
struct NcclFlag {
  char letter;
  std::string_view name;
  std::string_view own;
  std::string_view usual = "";
};

constexpr NcclFlag kNcclFlags[] = {{'b', "minbytes", "min_bytes"},
                                   {'e', "maxbytes", "max_bytes"},
                                   {'f', "stepfactor", "factor"},
                                   {'i', "stepbytes", "step_bytes"},
                                   {'n', "iters", "iterations"},
                                   {'w', "warmup_iters", "warmup"},
                                   {'c', "", "check"},
                                   {'o', "", "reduction"},
                                   {'d', "datatype", "dtype"},
                                   {'r', "", "root"},
                                   {'z', "", "blocking"},
                                   {'R', "local_register", "registered"},
                                   {'g', "", "ngpus"},
                                   {'t', "", "nthreads"},
                                   {'m', "agg_iters", "", "1"},
                                   {'N', "run_cycles", "", "1"},
                                   {'p', "parallel_init", "", "0"},
                                   {'y', "stream_null", "", "0"},
                                   {'T', "timeout", "", "0"},
                                   {'G', "cudagraph", "", "0"},
                                   {'C', "report_cputime", "", "0"},
                                   {'a', "average", "", "1"}};

// Adds the names of nccl-tests, which --help does not list.
void AddNcclNames(Tool& tool) {
  std::vector<Flag>& flags = tool.flags;
  for (const NcclFlag& nccl : kNcclFlags) {
    tool.short_flags.emplace_back(nccl.letter,
                                  nccl.own.empty() ? nccl.name : nccl.own);
    if (nccl.name.empty()) continue;
    const auto own = std::ranges::find(flags, nccl.own, &Flag::name);
    if (own != flags.end()) {
      flags.push_back(
          {.name = nccl.name, .is_boolean = own->is_boolean, .set = own->set});
      continue;
    }
    flags.push_back(
        {.name = nccl.name,
         .set = [nccl](std::string_view text) -> absl::Status {
           if (text == nccl.usual) return absl::OkStatus();
           return FlagError(
               nccl.name, text,
               absl::StrCat("this flag of nccl-tests has no counterpart here; "
                            "omit it, or give its usual value, ",
                            nccl.usual));
         }});
  }
}

absl::Status CheckTypes(const BenchOptions& options) {
  if (std::none_of(options.ops.begin(), options.ops.end(),
                   collectives::Reduces)) {
    return absl::OkStatus();
  }
  absl::Status refused;
  bool is_any_valid = false;
  for (const DType dtype : options.dtypes) {
    for (const collectives::ReduceOp reduction : options.reductions) {
      const absl::Status status =
          FlagError("dtype", DTypeName(dtype),
                    Validate(ReductionFor(reduction, dtype), dtype));
      is_any_valid |= status.ok();
      refused.Update(status);
    }
  }
  const bool may_skip = options.all_dtypes || options.all_reductions;
  return may_skip && is_any_valid ? absl::OkStatus() : refused;
}

absl::Status CheckRoot(const BenchOptions& options) {
  const int64_t world =
      *std::min_element(options.worlds.begin(), options.worlds.end());
  if (options.root < world) return absl::OkStatus();
  return FlagError("root", absl::StrCat(options.root),
                   absl::StrCat("with --np=", world,
                                ", expected a rank from 0 "
                                "to ",
                                world - 1));
}

// As in nccl-tests, sizes grow by the factor if it is above 1, otherwise by the
// step. After a message of 0 bytes a factor continues with 1 byte.
absl::Status CompleteSizes(BenchOptions& o) {
  constexpr size_t kMostSizes = 1 << 16;
  if (o.factor == 0) o.factor = o.step_bytes > 0 ? 1 : 4;
  if (o.step_bytes == 0) o.step_bytes = 1 << 20;
  if (o.min_bytes > o.max_bytes) {
    return GrowingSizes(o.min_bytes, o.max_bytes, 2).status();
  }
  for (int64_t size = o.min_bytes; size <= o.max_bytes;
       size = o.factor > 1 ? std::max<int64_t>(1, size * o.factor)
                           : size + o.step_bytes) {
    if (o.sizes.size() == kMostSizes) {
      return FlagError("step_bytes", ByteSize(o.step_bytes).ToString(),
                       absl::StrCat("gives more than ", kMostSizes,
                                    " sizes; use a larger step"));
    }
    o.sizes.push_back(size);
  }
  return absl::OkStatus();
}

// Rejects flags that only engines of the host support.
absl::Status CompleteDevice(BenchOptions& options) {
  const bool is_host = options.device == "cpu";
  if (options.engines.empty()) {
    options.engines = {is_host ? "shared_memory" : options.device};
  }
  if (is_host) return absl::OkStatus();
  if (options.device != "emulated" && options.device != "cuda") {
    return FlagError("device", options.device,
                     "expected cpu, emulated or cuda");
  }
  const bool chooses = options.algorithms != std::vector<std::string>{"engine"};
  if (!options.registered && !chooses) return absl::OkStatus();
  return FlagError(
      "device", options.device,
      absl::StrCat("--", chooses ? "algorithm" : "registered",
                   " is for memory of the host; leave it out, or use "
                   "--device=cpu"));
}

// First those of the rows: sizes, engines, operations and their operands; then
// how each row is measured and printed.
std::vector<Flag> Flags(BenchOptions& o) {
  return {
      ParsedFlag("min_bytes", "the smallest message; -b", "8B", o.min_bytes,
                 ParseBytes),
      ParsedFlag("max_bytes", "the largest message; -e", "64MiB", o.max_bytes,
                 ParseBytes),
      RangeFlag("factor",
                "from each size to the next; 1: sizes grow by --step_bytes; 0: "
                "4, or 1 with --step_bytes; -f",
                o.factor, 0, 1 << 20),
      ParsedFlag("step_bytes",
                 "from each size to the next with --factor=1; 0: 1MiB; -i",
                 "0B", o.step_bytes, ParseBytes),
      FieldFlag(
          "device",
          "whose memory the buffers are: cpu, cuda, or emulated, whose times "
          "say nothing about a GPU",
          o.device),
      ListFlag("engine",
               "engines to compare with the first, such as shared_memory,mpi; "
               "default: shared_memory, or that of the device's name",
               "", o.engines, ParseName),
      ListFlag("np", "numbers of ranks, such as 2,4,8", "2", o.worlds,
               ParseWorld),
      RangeFlag("ngpus",
                "with --nthreads as in nccl-tests: their product is the number "
                "of ranks, instead of --np; -g",
                o.ngpus, 0, 16),
      RangeFlag("nthreads", "see --ngpus; -t", o.nthreads, 0, 16),
      OpFlag(o),
      ListFlag("algorithm",
               "engine (its own), adaptive, prepared (its own, by "
               "Communicator::Prepare), ring, tree, ..., or all",
               "engine", o.algorithms, ParseAlgorithmName),
      OrAll(ListFlag("dtype", "element types, such as f32,bf16, or all; -d",
                     "f32", o.dtypes, ParseDType),
            o.dtypes, kAllDTypes, &o.all_dtypes),
      ReductionFlag(o),
      RangeFlag("root", "the root of broadcast, reduce, ...; -r", o.root, 0,
                kMaxWorld - 1),
      FieldFlag("registered", "uses buffers from AllocateShared", o.registered),
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
      CheckFlag(o),
      FieldFlag("blocking",
                "waits for every operation instead of measuring batches; -z",
                o.blocking),
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
  Tool tool = {
      .name = "comm_bench",
      .summary =
          "Times collectives on several engines and algorithms side by "
          "side, and checks their results.",
      .example = "-b 8 -e 64M -f 4 --engine=shared_memory,mpi --np=2,4",
      .flags = Flags(options)};
  AddNcclNames(tool);
  return tool;
}

absl::Status CompleteOptions(BenchOptions& o) {
  TESSERA_RETURN_IF_ERROR(CompleteSizes(o));
  // nccl-tests counts ranks by the GPUs of each thread.
  if (o.ngpus > 0 || o.nthreads > 0) {
    o.worlds = {std::max<int64_t>(1, o.ngpus) *
                std::max<int64_t>(1, o.nthreads)};
  }
  TESSERA_RETURN_IF_ERROR(CheckRoot(o));
  TESSERA_RETURN_IF_ERROR(CompleteDevice(o));
  return CheckTypes(o);
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
