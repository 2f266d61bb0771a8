// Row: one measured result of the benchmark, as JSON and text.
#ifndef TESSERA_TOOLS_COMM_BENCH_REPORT_H_
#define TESSERA_TOOLS_COMM_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"
#include "nlohmann/json_fwd.hpp"

namespace tessera::tools {

struct Row {
  std::string engine = "";
  std::string algorithm = "";  // "engine": its own.
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  collectives::ReduceOp reduction = collectives::ReduceOp::kSum;
  int64_t root = 0;
  int64_t world = 1;
  int64_t bytes = 0;  // Of the whole message.
  int64_t iterations = 0;
  // Median over iterations of the slowest rank.
  double seconds = 0;
  std::optional<double> in_place_seconds = std::nullopt;
  double ratio = 1;     // seconds over those of the first row of this case.
  bool checked = true;  // No element was wrong.
};

// The columns of CSV and JSON, which are stable: engine, algorithm, op, dtype,
// world, bytes, iterations, time_us, algbw_GBps, busbw_GBps, ratio, count,
// redop, root, wrong, in_place_time_us, in_place_algbw_GBps,
// in_place_busbw_GBps. Bandwidths are in 10^9 bytes a second,
// as nccl-tests define them; values that were not measured are null.
nlohmann::ordered_json RowToJson(const Row& row);

// A line of the text report from RowToJson's: the columns of nccl-tests, then
// ratio, engine and algorithm; after a heading unless `previous`, which may be
// null, is a row of the same collective and number of ranks.
std::string RowToText(const nlohmann::ordered_json& row,
                      const nlohmann::ordered_json& previous);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_REPORT_H_
