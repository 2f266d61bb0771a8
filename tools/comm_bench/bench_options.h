// BenchOptions: the command line of the benchmark.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/reduction.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// The fields are the flags of these names, parsed; --help explains them.
struct BenchOptions {
  std::vector<int64_t> sizes;  // Bytes, ascending.
  std::string device = "cpu";
  std::vector<std::string> engines;
  std::vector<int64_t> worlds;
  std::vector<collectives::OpKind> ops;
  // "all", "engine", "adaptive" or names.
  std::vector<std::string> algorithms;
  std::vector<DType> dtypes;
  collectives::ReduceOp reduction = collectives::ReduceOp::kSum;
  int64_t iterations = 0;
  int64_t warmup = 3;
  int64_t group_size = 0;
  bool bind = true;
  bool registered = false;
  bool in_place = false;
  bool reproducible = false;
  bool overlap = false;
  bool regret = false;
  bool check = true;
  bool bound = true;
  OutputFormat format = OutputFormat::kText;
  bool quiet = false;
};

// Its short flags are those of nccl-tests.
const Tool& CommBenchTool();

// The values of the tool's flags. InvalidArgument with the flag, its value and
// the allowed values. The names of engines are checked when they start.
absl::StatusOr<BenchOptions> OptionsFromFlags();

// The reduction `op` for elements of `dtype`: a scaled sum has a factor whose
// results are exact.
collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
