// BenchOptions: what the benchmark is asked to measure.
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

// The flags as they are given: lists with commas between.
struct BenchFlags {
  int64_t min_bytes = 8;
  int64_t max_bytes = int64_t{64} << 20;
  int64_t factor = 4;
  std::string engine = "shared_memory";
  std::string np = "2";
  std::string op = "all_reduce";
  std::string algorithm = "engine";
  std::string dtype = "f32";
  std::string reduction = "sum";
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
};

struct BenchOptions {
  std::vector<int64_t> sizes;  // Bytes, ascending.
  std::vector<std::string> engines;
  std::vector<int64_t> worlds;
  std::vector<collectives::OpKind> ops;
  std::vector<std::string>
      algorithms;  // "all", "engine", "adaptive" or a name.
  std::vector<DType> dtypes;
  collectives::Reduction reduction;
  int64_t iterations = 0;  // 0: as many as a fixed time allows.
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

// InvalidArgument that names the flag, its value and what is allowed. Engines'
// names are checked when they start.
absl::StatusOr<BenchOptions> ParseBenchFlags(const BenchFlags& flags);

// The reduction that a name stands for, on elements of a type: a scaled sum has
// a factor whose results are exact.
collectives::Reduction ReductionFor(collectives::ReduceOp op, DType dtype);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_OPTIONS_H_
