// Row: one measured result of the benchmark; and its reports: text, JSON, CSV,
// the regret of the adaptive chooser.
#ifndef TESSERA_TOOLS_COMM_BENCH_REPORT_H_
#define TESSERA_TOOLS_COMM_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/cli/cli.h"

namespace tessera::tools {

// The share of the shorter one of a computation and an operation that is hidden
// if both take `both`: 1 all, 0 none; below 0 if they slow each other down.
double HiddenShare(double compute, double operation, double both);

struct Row {
  std::string engine;
  std::string algorithm;  // "engine": its own; may end in "+reproducible".
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  std::string reduction = "";  // If the rows of a run have several.
  int64_t world = 1;
  int64_t bytes = 0;  // Of the whole message.
  int64_t iterations = 0;
  double seconds = 0;  // Median over iterations of the slowest rank.
  double ratio = 1;    // seconds over those of the first row of this case.
  std::optional<double> bound_seconds = std::nullopt;
  std::optional<double> hidden = std::nullopt;  // HiddenShare.
  // On the first row of an engine: the algorithm that its adaptive chooser
  // selects, and its time over that of the fastest.
  std::optional<std::string> chosen = std::nullopt;
  double regret = 1;

  // GB/s (10^9), as nccl-tests define them; 0 for a barrier.
  double AlgorithmBandwidth() const;
  double BusBandwidth() const;
  // bound_seconds / seconds; 1 is as fast as memory allows.
  std::optional<double> Share() const;
};

// A row of the JSON report: the columns of CSV, "bound_us", "share", "hidden",
// "chosen" and "regret"; values that were not measured are null. RowFromJson
// reads what RowToJson wrote.
nlohmann::ordered_json RowToJson(const Row& row);
Row RowFromJson(const nlohmann::ordered_json& json);

// Sets the choice and the regret on the first row of `engine`: `chosen` is the
// algorithm that its adaptive chooser selects. All rows are of one case.
void SetChoice(std::span<Row> rows, const std::string& engine,
               const std::string& chosen);

// The regret of adaptive choices: their time over that of the best algorithm.
struct RegretSummary {
  std::string op;  // "all" for the last one.
  int64_t cases = 0;
  double p95 = 1;
  double max = 1;
  std::string worst;  // The case of the maximum.
};

// One summary for each operation, in the order of operations, then one for all,
// over the rows that have a choice. Empty if there are none.
std::vector<RegretSummary> SummariseRegret(std::span<const Row> rows);

// CSV's first line. The columns are stable. The op of a row with a reduction
// has its name: "all_reduce:max".
inline constexpr std::string_view kCsvHeader =
    "engine,algorithm,op,dtype,world,bytes,iterations,time_us,algbw_GBps,"
    "busbw_GBps,ratio";

// Prints rows as text, JSON or CSV while they are measured; JSON is one
// document at the end.
class RowPrinter {
 public:
  RowPrinter(OutputFormat format, std::ostream& out)
      : format_(format), out_(out) {}

  // The rows of one case, in the order of their engines.
  void Print(std::span<const Row> rows);

  // Ends the document. JSON: {"rows": [RowToJson, ...], "regret": [{"op",
  // "cases", "p95", "max", "worst"}, ...]}.
  void Finish();

 private:
  void PrintText(const Row& row);

  OutputFormat format_;
  std::ostream& out_;
  std::vector<Row> rows_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_REPORT_H_
