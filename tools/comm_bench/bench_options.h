// BenchOptions: the command line of the benchmark.
//
//   BenchOptions options;
//   return RunTool(CommBenchTool(options), argc, argv, [&]() -> absl::Status {
//     TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
//     ...
//   });
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/reduction.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// The fields are the values of the flags of these names; --help explains them.
struct BenchOptions {
  int64_t min_bytes = 8;
  int64_t max_bytes = 64 << 20;
  int64_t factor = 0;
  int64_t step_bytes = 0;
  std::vector<int64_t> sizes;  // Bytes, ascending; from these three.
  std::string device = "cpu";
  std::vector<std::string> engines;
  std::vector<int64_t> worlds = {2};  // --np, or the product of these two.
  int64_t ngpus = 0;
  int64_t nthreads = 0;
  std::vector<collectives::OpKind> ops = {collectives::OpKind::kAllReduce};
  // "all", "engine", "adaptive", "prepared" or names.
  std::vector<std::string> algorithms = {"engine"};
  std::vector<DType> dtypes = {DType::kF32};
  std::vector<collectives::ReduceOp> reductions = {collectives::ReduceOp::kSum};
  // "all" was given: combinations that do not exist are left out.
  bool all_dtypes = false;
  bool all_reductions = false;
  int64_t root = 0;
  int64_t iterations = 0;
  int64_t warmup = 3;
  bool blocking = false;
  bool bind = true;
  bool registered = false;
  bool check = true;
  OutputFormat format = OutputFormat::kText;
  bool quiet = false;
};

// The tool, whose flags set the fields of `options`, which must outlive it. It
// has the flags of nccl-tests by their short and long names, without those that
// have no meaning here.
Tool CommBenchTool(BenchOptions& options);

// Checks the fields and sets those that follow from others. InvalidArgument
// with the flag, its value and the allowed values. The names of engines are
// checked when they start.
absl::Status CompleteOptions(BenchOptions& options);

// The options that these arguments of the tool give.
absl::StatusOr<BenchOptions> ParseOptions(
    const std::vector<std::string>& arguments);

// The reduction `op` for elements of `dtype`: a scaled sum has a factor whose
// results are exact.
collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
