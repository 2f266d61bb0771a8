// BenchOptions: the parsed flags of the benchmark.
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

namespace tessera::tools {

// "-b 8", "-b8" and "-b=8" become "--min_bytes=8"; likewise -e, -f, -n, -w, -d,
// -o and -c (max_bytes, factor, iterations, warmup, dtype, reduction, check).
// These are the short flags of nccl-tests. Other arguments are unchanged.
std::vector<std::string> LongArguments(
    const std::vector<std::string>& arguments);

// The flags that need no parsing.
struct BenchSwitches {
  int64_t iterations = 0;  // 0: as many as fit into 0.3 s.
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
};

// The flags as given; lists are separated by commas.
struct BenchFlags : BenchSwitches {
  int64_t min_bytes = 8;
  int64_t max_bytes = int64_t{64} << 20;
  int64_t factor = 4;
  std::string device = "cpu";
  std::string engine = "";  // Empty: shared_memory, or cuda on a device.
  std::string np = "2";
  std::string op = "all_reduce";
  std::string algorithm = "engine";
  std::string dtype = "f32";
  std::string reduction = "sum";
};

struct BenchOptions : BenchSwitches {
  std::vector<int64_t> sizes;  // Bytes, ascending.
  // Whose memory the buffers are: "cpu", "emulated" or "cuda". On a device
  // there is no bound.
  std::string device = "cpu";
  std::vector<std::string> engines;
  std::vector<int64_t> worlds;
  std::vector<collectives::OpKind> ops;
  // "all", "engine", "adaptive" or names.
  std::vector<std::string> algorithms;
  std::vector<DType> dtypes;
  collectives::Reduction reduction;
};

// InvalidArgument with the flag, its value and the allowed values. The names of
// engines are checked when they start.
absl::StatusOr<BenchOptions> ParseBenchFlags(const BenchFlags& flags);

// The reduction `op` for elements of `dtype`: a scaled sum has a factor whose
// results are exact.
collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
