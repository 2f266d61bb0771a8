// Rows as text, JSON or CSV.
#ifndef TESSERA_TOOLS_COMM_BENCH_PRINT_H_
#define TESSERA_TOOLS_COMM_BENCH_PRINT_H_

#include <ostream>
#include <span>
#include <string_view>

#include "tools/cli/output_format.h"
#include "tools/comm_bench/row.h"

namespace tessera::tools {

// CSV's first line. The columns are stable.
inline constexpr std::string_view kCsvHeader =
    "engine,algorithm,op,dtype,world,bytes,iterations,time_us,algbw_GBps,"
    "busbw_GBps,ratio";

// Prints rows as they are measured: JSON as one document in the end.
class RowPrinter {
 public:
  RowPrinter(OutputFormat format, std::ostream& out)
      : format_(format), out_(out) {}

  // The rows of one case, in the order of their engines.
  void Print(std::span<const Row> rows);

  // Ends the document. JSON: {"rows": [{"engine", ..., the columns of CSV,
  // "bound_us", "share", "hidden", "chosen", "regret"}, ...], "regret": [{"op",
  // "cases", "p95", "max"}, ...]}; what was not measured is null.
  void Finish();

 private:
  void PrintText(std::span<const Row> rows);
  void PrintJson(const Row& row);

  OutputFormat format_;
  std::ostream& out_;
  bool has_begun_ = false;
  std::vector<Row> rows_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_PRINT_H_
